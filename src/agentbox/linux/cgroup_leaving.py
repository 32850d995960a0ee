# SPDX-License-Identifier: MIT
"""Leaving the control group of whoever started this process, so that it does not end with that group."""

from __future__ import annotations

import os

from agentbox.light import contextlib
from agentbox.linux.cgroupfs import memberships, mounts, write_text

# Beside the groups of services, not below any.
DIRECTORY = "agentbox.keeper"
# The hierarchy by which a service manager on version 1 knows what belongs to a service.
_NAMED = "name=systemd"


def leave_group() -> list[str]:
    """Move this process into a group of its own at the top of the hierarchies by which services are ended; returns the
    groups. Where it is at a top already, or may not move, it stays. Does not raise."""
    joined = []
    paths = memberships()
    for mount in mounts():
        key = "" if mount.kind == "cgroup2" else _NAMED if _NAMED in mount.controllers else None
        if key is None or mount.root != "/" or paths.get(key, "/") == "/":
            continue
        above = f"{mount.point}/{DIRECTORY}"
        group = f"{above}/{os.getpid()}"
        with contextlib.suppress(OSError):
            _sweep(above)
            os.makedirs(group, 0o755, exist_ok=True)
            write_text(f"{group}/cgroup.procs", str(os.getpid()))
            joined.append(group)
    return joined


def _sweep(above: str) -> None:
    """Remove the groups of those that ended."""
    with contextlib.suppress(OSError):
        for name in os.listdir(above):
            if name.isdecimal():
                with contextlib.suppress(OSError):
                    os.rmdir(f"{above}/{name}")
