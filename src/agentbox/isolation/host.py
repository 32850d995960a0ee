# SPDX-License-Identifier: MIT
"""What this host offers to boxes, and what its refusals mean."""

from __future__ import annotations

import errno
import os
import sys

from agentbox.isolation.interpreters import ALWAYS_VISIBLE
from agentbox.isolation.plan import ETC_VISIBLE, HostView
from agentbox.isolation.requirement import Requirement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.errors import ConfinementError

# mount_setattr came with 5.12, RLIMIT_NPROC per user namespace with 5.14.
_MIN_KERNEL = (5, 14)

# Above every range that distributions hand out (useradd's, subuids, systemd's) and below 2**31.
BOX_UID_BASE = 1_900_000_000
_BOX_UIDS = 1 << 24


def view() -> HostView:
    """The host's layout as far as boxes see it."""
    top = tuple(
        (path, os.readlink(path) if os.path.islink(path) else None) for path in ALWAYS_VISIBLE if os.path.lexists(path)
    )
    return HostView(top, tuple(name for name in ETC_VISIBLE if os.path.exists(f"/etc/{name}")))


def _mapped_ids(path: str) -> list[tuple[int, int]]:
    """(first, count) of the ids that exist in this process's user namespace."""
    with open(path, "rb") as file:
        return [(int(first), int(count)) for first, _, count in (line.split() for line in file)]


class BoxIds:
    """Hands out a uid and gid for each box, different ones for boxes that live at the same time.

    As root every box gets an id of its own; a range is drawn at random so that two servers of one host do not meet.
    An ordinary user has one id, which all its boxes share; a root that has too few mapped ids does the same.
    """

    def __init__(self) -> None:
        self._used: set[int] = set()
        self._base = 0
        if os.geteuid() == 0:
            for first, count in _mapped_ids("/proc/self/uid_map"):
                if first <= BOX_UID_BASE and first + count >= BOX_UID_BASE + _BOX_UIDS:
                    self._base, self._count = BOX_UID_BASE, _BOX_UIDS
                    break
                if count >= 32768 and not self._base:
                    self._base, self._count = first + count // 2, count // 2 - 1

    def take(self) -> tuple[int, int]:
        """uid and gid of a new box."""
        if not self._base:
            return os.geteuid(), os.getegid()
        while True:
            number = self._base + int.from_bytes(os.urandom(8), "little") % self._count
            if number not in self._used:
                self._used.add(number)
                return number, number

    def reserve(self, uid: int) -> None:
        """A box of that uid is there already."""
        self._used.add(uid)

    def extents_without(self, own: int) -> list[tuple[int, int, int]]:
        """(inside, outside, count) maps of a user namespace in which `own` is 0 and the other ids of boxes are
        themselves; empty where all boxes share one id."""
        if not self._base:
            return []
        end = self._base + self._count
        halves = [(0, own, 1), (self._base, self._base, own - self._base), (own + 1, own + 1, end - own - 1)]
        return [extent for extent in halves if extent[2]]

    def give_back(self, uid: int) -> None:
        """The box of that uid is gone."""
        self._used.discard(uid)


def kernel_requirements() -> tuple[Requirement, ...]:
    """What can be told about the jail without building one."""
    if sys.platform != "linux":
        return (Requirement("Linux", False, sys.platform, "run the server on Linux, or in a Linux VM"),)
    import re

    release = os.uname().release
    found = re.match(r"(\d+)\.(\d+)", release)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    machine = os.uname().machine
    fresh = version >= _MIN_KERNEL
    known = machine in ("x86_64", "aarch64")
    return (
        Requirement("Linux 5.14 or newer", fresh, release, "" if fresh else "install a newer kernel"),
        Requirement(
            "x86_64 or aarch64", known, machine, "" if known else "no system call table for this machine; use a VM"
        ),
    )


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def in_container() -> bool:
    """Whether this process seems to run in a container."""
    marks = ("/.dockerenv", "/run/.containerenv")
    return any(map(os.path.exists, marks)) or "container=" in _read("/proc/1/environ")


def explain_refusal(error: ConfinementError) -> Requirement:
    """The requirement that a failed step of building a box stands for, with the way to get it."""
    step, code = str(error.data.get("step", "")), error.data.get("errno")
    detail = error.message
    if step in {"unshare", "map ids", "loopback", "private mounts", "open mounts"}:
        name = "unprivileged user namespaces"
        if code == errno.ENOSPC or _read("/proc/sys/user/max_user_namespaces") == "0":
            return Requirement(name, False, detail, "sysctl -w user.max_user_namespaces=65536")
        if _read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
            return Requirement(name, False, detail, "sysctl -w kernel.unprivileged_userns_clone=1")
        if _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
            return Requirement(
                name,
                False,
                detail,
                "Ubuntu's AppArmor rule refuses them to programs without a profile: run the server as root, or "
                "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, or give the server's Python a profile "
                "with the rule `userns,`",
            )
        if in_container():
            return Requirement(
                name,
                False,
                detail,
                "this container may not make user namespaces: start it with `--security-opt seccomp=unconfined "
                "--security-opt apparmor=unconfined --security-opt systempaths=unconfined`, or run agentbox on the "
                "host",
            )
        return Requirement(name, False, detail, "allow user namespaces for this user, or run the server as root")
    if step == "mount /proc":
        return Requirement(
            "a /proc without masks",
            False,
            detail,
            "the kernel refuses a new /proc where the visible one has masked paths, as in most containers: start "
            "the container with `--security-opt systempaths=unconfined`",
        )
    if step == "start gVisor":
        return Requirement("a runsc that runs here", False, detail, "use a release of gVisor of 2022 or 2023")
    if step == "seccomp":
        return Requirement("seccomp filters", False, detail, "use a kernel with CONFIG_SECCOMP_FILTER")
    return Requirement("a box can be built", False, detail, "please report this with the output of `agentbox doctor`")
