# SPDX-License-Identifier: MIT
"""What runs leave on the host, counted from outside: processes, mounts, control groups, directories, memory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agentbox.isolation.host import BOX_UID_BASE
from agentbox.linux.cgroupfs import mounts
from tests.running_server import RunningServer

PATIENCE_SECONDS = 20.0
# Some 20 ms apart.
_LOOKS = 25


def until(condition: Callable[[], bool], what: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for something that must become true soon; fails with the words of `what`."""
    deadline = time.monotonic() + patience_seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def field_of(pid: int, name: str) -> str:
    """A field of its status; empty where it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith(f"{name}:"):
                return line.split(":", 1)[1].strip()
    return ""


def descendants(pid: int) -> list[int]:
    """Every process below one, itself not counted."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        if (parent := field_of(int(name), "PPid")).isdigit():
            children.setdefault(int(parent), []).append(int(name))
    found, frontier = [], [pid]
    while frontier:
        below = children.get(frontier.pop(), [])
        found += below
        frontier += below
    return found


def processes_of_boxes() -> set[int]:
    """Processes of any uid that root's boxes get. Boxes of other servers' tests count too."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        uid = field_of(int(name), "Uid").split()
        if uid and int(uid[0]) >= BOX_UID_BASE:
            found.add(int(name))
    return found


def launcher_of(server: RunningServer) -> int:
    """The launcher process: the server's only child that stays."""
    (pid,) = [pid for pid in descendants(server.pid) if field_of(pid, "PPid") == str(server.pid)]
    return pid


def owner_groups(server_pid: int) -> list[Path]:
    """Control groups of the boxes of one server."""
    found = []
    for mount in mounts():
        # Groups come and go while they are looked for.
        with contextlib.suppress(OSError):
            for directory in Path(mount.point).rglob("agentbox"):
                found += [box for box in directory.glob(f"{server_pid}-*/*") if box.is_dir()]
    return found


def kilobytes(pid: int, name: str = "VmRSS") -> int:
    """A memory figure of a process: VmRSS is what it has, VmHWM the most it ever had."""
    return int(field_of(pid, name).split()[0])


@dataclass(frozen=True)
class HostState:
    """One look at everything a server's runs could leave behind. `groups` counts control groups that hold a process:
    empty ones are kept to be used again. `kept` are descriptors of files of groups, `descriptors` all others."""

    processes: int
    mounts: tuple[str, ...]
    groups: int
    files: tuple[str, ...]
    descriptors: int
    kept: int

    @classmethod
    def around(cls, server: RunningServer) -> HostState:
        boxes = server.state_dir / "boxes"
        descriptors, of_groups = descriptors_of(server.pid)
        return cls(
            processes=len(descendants(server.pid)),
            mounts=tuple(Path("/proc/self/mounts").read_text().splitlines()),
            groups=sum(1 for group in owner_groups(server.pid) if _holds_a_process(group)),
            files=tuple(sorted(str(path) for path in boxes.rglob("*"))),
            descriptors=descriptors,
            kept=of_groups,
        )

    @classmethod
    def at_rest(cls, server: RunningServer) -> HostState:
        """The state when the warm pool has what it wants."""
        wait_for_rest(server.pid)
        return cls.around(server)


def wait_for_rest(server_pid: int) -> None:
    """Until a server's warm pools have what they want: some looks in a row that say the same."""
    looks: list[tuple[int, int]] = []

    def is_still() -> bool:
        looks.append((len(descendants(server_pid)), len(os.listdir(f"/proc/{server_pid}/fd"))))
        return len(looks) >= _LOOKS and len(set(looks[-_LOOKS:])) == 1

    until(is_still, "the warm pool came to no rest")


def descriptors_of(pid: int) -> tuple[int, int]:
    """How many descriptors a server has: of anything else, and of files of control groups, some of which are kept."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    of_groups = sum("/agentbox/" in path and path.startswith("/sys/fs/cgroup/") for path in found)
    return len(found) - of_groups, of_groups


def _holds_a_process(group: Path) -> bool:
    with contextlib.suppress(OSError):
        return bool((group / "cgroup.procs").read_text())
    return False


@contextlib.contextmanager
def leaves_nothing(server: RunningServer) -> Iterator[None]:
    """Around runs of which nothing may be left when their answers are there. The server has had a run before."""
    server.client().post("/v1/run", json={"code": "print(1)"})
    before = HostState.at_rest(server)
    yield

    def differs() -> dict[str, object]:
        after = HostState.around(server)
        found: dict[str, object] = {}
        for name in ("processes", "groups"):
            if getattr(after, name) != getattr(before, name):
                found[name] = (getattr(before, name), getattr(after, name))
        for name in ("mounts", "files"):
            if changed := set(getattr(after, name)) ^ set(getattr(before, name)):
                found[name] = sorted(changed)
        # Keep-alive connections of clients come and go; boxes would leave several descriptors each.
        if after.descriptors > before.descriptors + 12:
            found["descriptors"] = (before.descriptors, after.descriptors)
        # A few control groups are kept, with up to eight descriptors each.
        if after.kept > before.kept + 50:
            found["kept"] = (before.kept, after.kept)
        return found

    with contextlib.suppress(AssertionError):
        until(lambda: not differs(), "")
    left = differs()
    assert not left, f"left behind (before, after): {left}"
