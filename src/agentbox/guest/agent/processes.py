# SPDX-License-Identifier: MIT
"""Who descends from whom, by /proc, and signals to all of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable


def census() -> dict[int, int] | None:
    """Parent of each process that is not dead yet; None without a /proc."""
    found: dict[int, int] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return None
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if len(fields) > 1 and fields[0] not in (b"Z", b"X"):
            found[int(name)] = int(fields[1])
    return found


# Some kernels, gVisor's of old, have no subreapers: what a command leaves behind goes to PID 1. There each command has
# a mark in its environment, which its children inherit.
MARK = "AGENTBOX_COMMAND"
_AGENT = os.urandom(8).hex()


def mark_of(number: int) -> str:
    """The value of MARK for a command."""
    return f"{_AGENT}-{number}"


def may_belong(pid: int, number: int) -> bool:
    """Whether the environment of an orphan has the mark of this command, or of none."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            content = file.read(1 << 20)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    whole = f"{MARK}={mark_of(number)}\0".encode()
    return whole in content or f"{MARK}={_AGENT}".encode() not in content


def descendants(parents: dict[int, int], roots: Iterable[int]) -> list[int]:
    """Those of `parents` that descend from any of `roots`, the roots not counted."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    frontier = list(roots)
    seen = set(frontier)
    while frontier:
        for child in children.get(frontier.pop(), ()):
            if child not in seen:
                seen.add(child)
                found.append(child)
                frontier.append(child)
    return found


def signal_all(pids: Iterable[int], number: int, uid: int, gid: int) -> None:
    """Send a signal to each; as their user, where a root without CAP_KILL may not."""
    refused = []
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            refused.append(pid)
    if not refused or os.geteuid() != 0 or uid == 0:
        return
    try:
        child = os.fork()
    except OSError:
        return
    if child == 0:
        try:
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            for pid in refused:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
        finally:
            os._exit(0)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
