# SPDX-License-Identifier: MIT
"""Namespaces of the calling process, and its own id maps."""

from __future__ import annotations

import fcntl
import os
import struct

from agentbox.light import socket
from agentbox.linux.syscalls import check, libc, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def unshare(flags: int) -> None:
    """Leave the namespaces named by CLONE_NEW* flags for new ones."""
    check("unshare", libc.unshare(flags))


def enter(fd: int, kind: int) -> None:
    """Go into the namespace of a descriptor; `kind` is its CLONE_NEW* flag. A user namespace can only be entered by a
    process with one thread."""
    syscall("setns", fd, kind)


def with_mounts_of(process: int, work: Callable[[], None]) -> None:
    """Do something where the mounts of a process are seen, which is here when they are the same: then in this process,
    else in a child. Raises OSError."""
    theirs = os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(theirs).st_ino == os.stat("/proc/self/ns/mnt").st_ino:
            work()
            return
        pid = os.fork()
        if pid == 0:
            code = 255
            try:
                enter(theirs, CLONE_NEWNS)
                work()
                code = 0
            except OSError as error:
                code = min(error.errno or 255, 255)
            finally:
                os._exit(code)
    finally:
        os.close(theirs)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code if code > 0 else 255, os.strerror(code) if 0 < code < 255 else "the child failed")


def map_own_ids(inside: int, outside_uid: int, outside_gid: int) -> None:
    """Map one uid and one gid of a new user namespace onto the ids that this process had outside.

    A process may write this map by itself, without privilege, when it is the only line and names its own effective
    ids (user_namespaces(7)); setgroups must be given up first.
    """
    _write_maps("self", "deny", f"{inside} {outside_uid} 1", f"{inside} {outside_gid} 1")


def keep_own_ids(uid: int, gid: int) -> None:
    """Let the one uid and gid that this process had outside be the same in its new user namespace."""
    _write_maps("self", "deny", f"{uid} {uid} 1", f"{gid} {gid} 1")


def keep_all_ids(pid: int) -> None:
    """Let every id of this user namespace be the same in the new one of a child. Needs CAP_SETUID, CAP_SETGID and, for
    uid 0, CAP_SETFCAP."""
    maps = []
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/self/{name}", encoding="ascii") as file:
            extents = [line.split() for line in file]
        maps.append("".join(f"{first} {first} {count}\n" for first, _, count in extents))
    _write_maps(str(pid), "", *maps)


def write_maps(pid: int, extents: list[tuple[int, int, int]]) -> None:
    """Give a child's new user namespace these (inside, outside, count) extents, for uids and gids alike. Needs
    CAP_SETUID and CAP_SETGID."""
    text = "".join(f"{inside} {outside} {count}\n" for inside, outside, count in extents)
    _write_maps(str(pid), "", text, text)


def _write_maps(process: str, setgroups: str, uid_map: str, gid_map: str) -> None:
    for name, text in (("setgroups", setgroups), ("uid_map", uid_map), ("gid_map", gid_map)):
        if not text:
            continue
        fd = os.open(f"/proc/{process}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def namespace_of(pairs: Mapping[int, int]) -> int:
    """As `mapping_namespace`, for any number of ids: what belongs to each on the disk is shown as another's."""
    return _namespace_of([(on_disk, shown, 1) for on_disk, shown in pairs.items()])


def mapping_namespace(on_disk: int, shown: int, *same: int) -> int:
    """A user namespace, as a descriptor, whose maps say: what belongs to uid and gid `on_disk` is shown as `shown`, and
    what belongs to the `same` ids as it is. For mounts.map_ids; no process lives in it. Needs root."""
    return _namespace_of([(on_disk, shown, 1), *((one, one, 1) for one in same)])


def swapping_namespace(one: int, other: int, *same: int) -> int:
    """As `mapping_namespace`, but what belongs to either is shown as the other's."""
    return _namespace_of([(one, other, 1), (other, one, 1), *((id_, id_, 1) for id_ in same)])


def _namespace_of(extents: list[tuple[int, int, int]]) -> int:
    ready_read, ready_write = os.pipe()
    hold_read, hold_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                unshare(CLONE_NEWUSER)
            except OSError:
                os.write(ready_write, b"x")
            else:
                os.write(ready_write, b"r")
            os.close(hold_write)
            os.read(hold_read, 1)
        finally:
            os._exit(0)
    try:
        os.close(ready_write)
        if os.read(ready_read, 1) != b"r":
            raise OSError(1, "unshare: the user namespace of an id map was refused")
        write_maps(pid, extents)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for end in (ready_read, hold_read, hold_write):
            os.close(end)
        # Not left to the closed end: a child that another thread forked meanwhile may hold a copy of it.
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def bring_loopback_up() -> None:
    """Set the interface lo of this network namespace up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = bytearray(struct.pack("16sH14x", b"lo", 0) + bytes(8))
        fcntl.ioctl(probe, _SIOCGIFFLAGS, request)
        (flags,) = struct.unpack_from("H", request, 16)
        struct.pack_into("H", request, 16, flags | _IFF_UP)
        fcntl.ioctl(probe, _SIOCSIFFLAGS, request)
