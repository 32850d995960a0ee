# SPDX-License-Identifier: MIT
"""What a box without namespaces leaves when its init is killed, by its own guest for instance: the launcher, the next
subreaper above, inherits it and ends it."""

from __future__ import annotations

import os
import time

from agentbox.light import contextlib, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

_PATIENCE_SECONDS = 10


def sweep(forked: Collection[int]) -> None:
    """Kill and reap every child of this process that it did not fork itself, with all below it. Inits of PID
    namespaces come here too, when the process that made them has done its part: they stay."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        orphans = [pid for pid in _children(os.getpid()) if pid not in forked and _is_in_this_namespace(pid)]
        if not orphans:
            return
        family = list(orphans)
        for pid in family:
            family += _children(pid)
        # All are stopped before the first dies: a respawner must not win the race.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in family:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        for pid in orphans:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def _is_in_this_namespace(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"NSpid:"):
                return line.split()[-1] == str(pid).encode()
    return True
