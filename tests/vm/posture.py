# SPDX-License-Identifier: MIT
"""Runs inside the virtual machine: says in JSON what its kernel offers, then exits with the code it was given."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from agentbox.linux.cgroupfs import mounts

print(
    json.dumps(
        {
            "uid": os.getuid(),
            "landlock": "landlock" in Path("/sys/kernel/security/lsm").read_text().split(","),
            "seccomp": "user_notif" in Path("/proc/sys/kernel/seccomp/actions_avail").read_text().split(),
            "user_namespaces": int(Path("/proc/sys/user/max_user_namespaces").read_text()) > 0,
            "v1": [mount.point for mount in mounts() if mount.kind == "cgroup"],
        }
    )
)
print("posture: leaving", file=sys.stderr)
sys.exit(int(sys.argv[1]))
