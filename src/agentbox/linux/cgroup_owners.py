# SPDX-License-Identifier: MIT
"""Whose control groups are whose: owner names, the search for groups of dead owners, killing what lives in a group."""

from __future__ import annotations

import os
import time

from agentbox.light import contextlib, signal
from agentbox.linux.cgroupfs import DIRECTORY, members, read_text, write_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WALK_DIRECTORIES = 4000
_WALK_DEPTH = 12
_PATIENCE_SECONDS = 2.0
_KILL_EVERY = 8

Group = tuple[int | None, str]
"""A group's directory: a path and the descriptor it is relative to."""


def owner_name() -> str:
    """Return the name of this process as an owner: pid, start time in clock ticks, inode of its PID namespace."""
    return f"{os.getpid()}-{_start_time(os.getpid())}-{_pid_namespace()}"


def is_dead(name: str) -> bool:
    """Say whether the owner of that name has certainly ended; an owner in another PID namespace cannot be judged."""
    parts = name.split("-")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        return False
    if parts[2] != _pid_namespace():
        return False
    pid = int(parts[0])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        # It lives and belongs to somebody else: with hidepid its /proc entry would look absent.
        return False
    try:
        if _start_time(pid) != parts[1]:
            return True
        state = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[0]
        # The leader of a thread group may be a zombie while its threads run on.
        return state in ("Z", "X") and len(os.listdir(f"/proc/{pid}/task")) <= 1
    except OSError:
        return not os.path.isdir(f"/proc/{pid}") and not _exists(pid)


def find_owner_parents(point: str) -> Iterator[str]:
    """Yield every directory named agentbox below a mount point; looks at 4,000 directories at most, 12 deep."""
    level, seen = [point], 0
    for _ in range(_WALK_DEPTH):
        following: list[str] = []
        for directory in level:
            seen += 1
            if seen > _WALK_DIRECTORIES:
                return
            for path in subgroups(directory):
                if path.endswith("/" + DIRECTORY):
                    yield path
                else:
                    following.append(path)
        level = following


def subgroups(directory: str) -> list[str]:
    """Return the paths of the groups directly in a group. Empty when unreadable or gone."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def _start_time(pid: int) -> str:
    # The name (field 2) may hold spaces and parentheses; field 22 is the 20th after it.
    return read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[19]


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid").partition("[")[2].rstrip("]")


def _exists(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        with contextlib.suppress(PermissionError):
            os.kill(pid, 0)
        return True
    return False


def kill_members(groups: Sequence[Group], tail: str) -> None:
    """Kill every process in the groups (one box: several hierarchies in version 1); returns after 2 s at most.

    `tail` is how the path of the box ends, `/agentbox/OWNER/BOX`. Never raises for a process that is gone or foreign.
    """
    if len(groups) == 1 and _kill_at_once(groups[0]):
        return
    if not _pids(groups):
        return
    # A fork bomb is faster than a loop over its pids: no new process may start while the loop runs.
    limits = [(group, value) for group in groups if (value := _swap_pids_max(group, "0")) is not None]
    for _ in _pauses():
        alive = _pids(groups)
        if not alive:
            break
        for pid in alive:
            kill_member(pid, tail)
    for group, value in limits:
        _swap_pids_max(group, value)


def remove(groups: Sequence[Group], tail: str) -> bool:
    """Kill what lives in a box's groups and remove them; False when something stayed after about 2 s."""
    left = list(groups)
    for count in _pauses():
        left = [group for group in left if not _rmdir(group)]
        if not left:
            return True
        # Again now and then: a child that held a descriptor of cgroup.procs may have joined after the first time.
        if count % _KILL_EVERY == 0:
            kill_members(left, tail)
    return False


def _pauses() -> Iterator[int]:
    """Count tries, sleeping between them: a killed process needs a moment to leave its group."""
    deadline, pause, count = time.monotonic() + _PATIENCE_SECONDS, 0.0002, 0
    while time.monotonic() < deadline:
        yield count
        time.sleep(pause)
        pause, count = min(pause * 1.5, 0.02), count + 1


def _rmdir(group: Group) -> bool:
    dir_fd, path = group
    try:
        os.rmdir(path, dir_fd=dir_fd)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _pids(groups: Sequence[Group]) -> set[int]:
    # 0 is a process of an outer PID namespace: nothing here can signal it.
    return {pid for dir_fd, path in groups for pid in members(path, dir_fd)} - {0}


def _kill_at_once(group: Group) -> bool:
    dir_fd, path = group
    try:
        write_text(f"{path}/cgroup.kill", "1", dir_fd)
    except OSError:
        return False
    return True


def _swap_pids_max(group: Group, value: str) -> str | None:
    dir_fd, path = group
    try:
        before = read_text(f"{path}/pids.max", dir_fd).strip()
        write_text(f"{path}/pids.max", value, dir_fd)
    except OSError:
        return None
    return before


def kill_member(pid: int, tail: str) -> None:
    """Kill a process only if it is still in a group whose path ends so: its pid may have gone to a stranger since it
    was read. Never raises."""
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            if any(line.endswith(tail) for line in read_text(f"/proc/{pid}/cgroup").splitlines()):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
