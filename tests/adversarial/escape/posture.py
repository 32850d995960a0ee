# SPDX-License-Identifier: MIT
"""What the host's /proc says of a guest's process: the box as the kernel sees it, not as the guest reports it."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


@dataclass(frozen=True)
class Posture:
    """A process by its host pid, read while it lives."""

    pid: int
    status: dict[str, str]
    namespaces: dict[str, str]
    descriptors: dict[str, str]
    environment: dict[str, str]
    mountinfo: str
    parent: int

    @classmethod
    def of(cls, mark: str) -> Posture:
        """The guest's main process, found by an argument that only it has. Needs to see all processes."""
        (pid,) = processes_with(mark)
        return cls.of_pid(pid)

    @classmethod
    def of_pid(cls, pid: int) -> Posture:
        directory = Path(f"/proc/{pid}")
        status = dict(line.split(":\t", 1) for line in (directory / "status").read_text().splitlines() if ":\t" in line)
        variables = (directory / "environ").read_bytes().decode().split("\0")
        return cls(
            pid=pid,
            status=status,
            namespaces={name: os.readlink(directory / "ns" / name) for name in NAMESPACES},
            descriptors={name: os.readlink(directory / "fd" / name) for name in os.listdir(directory / "fd")},
            environment=dict(one.split("=", 1) for one in variables if "=" in one),
            mountinfo=(directory / "mountinfo").read_text(),
            parent=int(status["PPid"]),
        )


def init_of(guest: Posture) -> Posture:
    """Process 1 of the box that a guest is in. The parent of a warm interpreter's child is beyond its box."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{name}/ns/pid") == guest.namespaces["pid"]:
                found = Posture.of_pid(int(name))
                if found.status["NSpid"].split()[-1] == "1":
                    return found
    raise AssertionError(f"no process 1 beside {guest.pid}")


def processes_with(mark: str) -> list[int]:
    """Host pids of living processes that have the mark in their command line or environment; not our own, and none that
    SIGKILL was sent to, which never runs its program again."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        if int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{name}/cmdline").read_bytes()
            with contextlib.suppress(OSError):
                text += Path(f"/proc/{name}/environ").read_bytes()
            if mark.encode() in text and not _is_killed(name):
                found.append(int(name))
    return found


def _is_killed(name: str) -> bool:
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{name}/status").read_text().splitlines() if ":\t" in line
    )
    return bool((int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)) >> (signal.SIGKILL - 1) & 1)
