# SPDX-License-Identifier: MIT
"""What this process has on the host beside itself: to be the same after a soak as before."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from agentbox.linux.cgroup_owners import owner_name
from agentbox.linux.cgroupfs import mounts
from tests.adversarial.host_state import descendants

SETTLING_SECONDS = 10.0


@dataclass(frozen=True)
class Remains:
    """`descriptors` are what this process has open; `processes`, `threads`, `groups`, `files` and `mounts` are its
    own."""

    descriptors: tuple[str, ...]
    processes: tuple[str, ...]
    threads: int
    groups: tuple[str, ...]
    files: tuple[str, ...]
    mounts: tuple[str, ...]

    @classmethod
    def look(cls, state: Path, containers: Iterable[str] = (), places: Iterable[str] = ()) -> Remains:
        """All of it now. `containers` and `places` are what the engine once made for this process."""
        known = (*containers, str(state), *places)
        groups: list[str] = []
        infos = Path("/proc/self/mountinfo").read_text().splitlines()
        for mount in mounts():
            with contextlib.suppress(OSError):
                groups += map(str, Path(mount.point).rglob(owner_name()))
        files = [str(path) for path in (state / "sandboxes").rglob("*")]
        files += [place for place in places if os.path.exists(place)]
        return cls(
            tuple(sorted(_opened())),
            tuple(sorted({*_below(), *_of_containers(containers)})),
            threading.active_count(),
            tuple(sorted(groups)),
            tuple(sorted(files)),
            tuple(sorted(line for line in infos if any(one in line for one in known))),
        )

    def more_than(self, before: Remains) -> list[str]:
        """What is there now and was not before, in words."""
        found = []
        opened = list(self.descriptors)
        for one in before.descriptors:
            if one in opened:
                opened.remove(one)
        if len(self.descriptors) > len(before.descriptors):
            found.append(f"{len(self.descriptors) - len(before.descriptors)} open files: {opened[:20]}")
        if self.threads > before.threads:
            found.append(f"{self.threads - before.threads} threads")
        names = ("processes", "groups", "files", "mounts")
        new = {name: sorted(set(getattr(self, name)) - set(getattr(before, name))) for name in names}
        return found + [f"{len(more)} {name}: {more[:10]}" for name, more in new.items() if more]


def settled(look: Callable[[], Remains], before: Remains) -> list[str]:
    """What is left when everything had time to go."""
    deadline = time.monotonic() + SETTLING_SECONDS
    while (left := look().more_than(before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _opened() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            # Sockets and pipes have numbers of their own.
            found.append(target.partition(":")[0] if target.startswith(("socket:", "pipe:")) else target)
    return found


def _below() -> list[str]:
    return [_named(pid) for pid in descendants(os.getpid())]


def _of_containers(containers: Iterable[str]) -> list[str]:
    """Processes that the engine has for a container: in it, or beside it and with its id in their words."""
    wanted = [one.encode() for one in containers]
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        said = b""
        for name in ("cmdline", "cgroup"):
            with contextlib.suppress(OSError):
                said += Path(f"/proc/{pid}/{name}").read_bytes()
        if any(one in said for one in wanted):
            found.append(_named(int(pid)))
    return found


def _named(pid: int) -> str:
    with contextlib.suppress(OSError):
        return f"{pid} {Path(f'/proc/{pid}/comm').read_text().strip()}"
    return str(pid)
