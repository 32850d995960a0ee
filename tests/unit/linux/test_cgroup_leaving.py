# SPDX-License-Identifier: MIT
from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from agentbox.linux.cgroup_leaving import DIRECTORY
from agentbox.linux.cgroupfs import mounts
from tests.conftest import not_here

PROGRAM = """
import sys
from agentbox.linux.cgroup_leaving import leave_group
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
print(*leave_group())
print(open("/proc/self/cgroup").read())
"""


def test_process_leaves_the_group_of_a_service_and_no_group_stays() -> None:
    tops = [mount.point for mount in mounts() if mount.kind == "cgroup2" or "name=systemd" in mount.controllers]
    group = next((Path(top, f"agentbox-test-{os.getpid()}") for top in tops if os.access(top, os.W_OK)), None)
    if group is None or os.geteuid() != 0:
        not_here("no hierarchy of services in which groups can be made")
    try:
        group.mkdir()
    except OSError as error:
        not_here(f"no group can be made: {error}")
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(group)], capture_output=True, text=True, check=True, timeout=60
        )
        joined, rest = done.stdout.split("\n", 1)
        assert joined.startswith(f"{group.parent}/{DIRECTORY}/")
        assert group.name not in rest
    finally:
        group.rmdir()
        for left in (*Path(group.parent, DIRECTORY).glob("[0-9]*"), Path(group.parent, DIRECTORY)):
            with contextlib.suppress(OSError):
                left.rmdir()
