# SPDX-License-Identifier: MIT
"""Stopping every process of a box at once, so that none runs and none sees it, and letting them go on.

The freezer of control groups version 2 does that, also on hosts whose limits are held by version 1: a killed process
ends while it is frozen. Where there is none, each process is stopped by signal, which its parent may see.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from agentbox.linux.cgroup_owners import kill_members, owner_name, remove, subgroups
from agentbox.linux.cgroupfs import (
    DIRECTORY,
    members,
    memberships,
    mounts,
    own_directory,
    parse_memberships,
    read_text,
    why_not_writable,
    write_text,
)

_PATIENCE_SECONDS = 5.0
_PAUSE_SECONDS = 0.002
_STOPPED = ("T", "t", "Z", "X")


class Freezer:
    """Freezes the processes that `pids` lists, and whatever they start meanwhile. `name` is [a-z0-9-]. `group` is the
    directory of version 2 that they are in, where their limits are held by that version. Calls block."""

    def __init__(self, name: str, pids: Callable[[], set[int]], group: str = "") -> None:
        self._pids = pids
        self._name = name
        self._own = not group
        self._group = group
        self._stopped: set[int] = set()

    def freeze(self) -> None:
        """Returns when nothing runs. Raises OSError; everything runs on then."""
        try:
            if not self._group and (base := _base()) is not None:
                group = f"{base}/{DIRECTORY}/{owner_name()}/{self._name}"
                os.makedirs(group, exist_ok=True)
                self._group = group
            if self._group:
                self._freeze_group(self._group)
            else:
                self._stop_all()
        except BaseException:
            self.thaw()
            raise

    def thaw(self) -> None:
        """Let everything go on. Does not raise."""
        if self._group:
            with contextlib.suppress(OSError):
                write_text(f"{self._group}/cgroup.freeze", "0")
        stopped, self._stopped = self._stopped, set()
        for pid in stopped & (self._pids() if stopped else set()):
            _signal(pid, signal.SIGCONT)

    def close(self) -> None:
        """Remove what was made, when everything in it is dead. Does not raise."""
        group, self._group = self._group, ""
        if not group or not self._own:
            return
        tail = f"/{DIRECTORY}/{owner_name()}/{self._name}"
        kill_members([(None, group)], tail)
        remove([(None, group)], tail)
        for above in (os.path.dirname(group), os.path.dirname(os.path.dirname(group))):
            with contextlib.suppress(OSError):
                os.rmdir(above)

    def _freeze_group(self, group: str) -> None:
        write_text(f"{group}/cgroup.freeze", "1")
        deadline = time.monotonic() + _PATIENCE_SECONDS
        unmovable: set[int] = set()
        while self._own and (outside := self._pids() - set(members(group)) - unmovable):
            for pid in outside:
                try:
                    write_text(f"{group}/cgroup.procs", str(pid))
                except ProcessLookupError:
                    unmovable.add(pid)
            _judge(deadline)
        while "frozen 1" not in read_text(f"{group}/cgroup.events") and members(group):
            _judge(deadline)
            time.sleep(_PAUSE_SECONDS)

    def _stop_all(self) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while running := {pid for pid in self._pids() if _state(pid) not in _STOPPED}:
            for pid in running:
                _signal(pid, signal.SIGSTOP)
                self._stopped.add(pid)
            _judge(deadline)
            time.sleep(_PAUSE_SECONDS)


def _judge(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError("its processes cannot be stopped: more and more come, or the kernel waits for a disk")


def _base() -> str | None:
    """A directory of version 2 in which groups can be made and frozen."""
    own = memberships().get("", "/")
    for mount in mounts():
        if mount.kind != "cgroup2":
            continue
        for place in dict.fromkeys((own_directory(mount, own), mount.point)):
            if place is not None and why_not_writable(place) is None:
                return place
    return None


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _state(pid: int) -> str:
    try:
        return read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def of_group(process: int) -> set[int]:
    """The processes in the control group of a process and below it; empty where it is in none of its own."""
    try:
        paths = parse_memberships(read_text(f"/proc/{process}/cgroup"))
    except OSError:
        return set()
    for controller in ("pids", "memory", ""):
        path = paths.get(controller, "/")
        for mount in mounts() if path != "/" else ():
            if controller in mount.controllers or (not controller and mount.kind == "cgroup2"):
                beside = path.removeprefix(mount.root.rstrip("/"))
                if found := _below(f"{mount.point}/{beside.strip('/')}"):
                    return found
    return set()


def _below(group: str) -> set[int]:
    return set(members(group)).union(*(_below(path) for path in subgroups(group))) - {0}


def of_namespace(pidfd: int) -> set[int]:
    """The processes in the process-id namespace that a process is the first of; none when it is gone (-1)."""
    found: set[int] = set()
    if pidfd < 0:
        return found
    with contextlib.suppress(OSError), open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as file:
        first = next((line.split()[1] for line in file if line.startswith("Pid:")), "-1")
        wanted = os.readlink(f"/proc/{first}/ns/pid")
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{name}/ns/pid") == wanted:
                        found.add(int(name))
    return found
