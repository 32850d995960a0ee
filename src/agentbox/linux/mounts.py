# SPDX-License-Identifier: MIT
"""Mounts by descriptor (the mount API of Linux 5.2, mount_setattr of 5.12) and the few that still need mount(2)."""

from __future__ import annotations

import errno
import os
import stat

from agentbox.linux import foreign
from agentbox.linux.syscalls import check, libc, syscall

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_FSOPEN_CLOEXEC = 1
_FSMOUNT_CLOEXEC = 1
_FSCONFIG_SET_STRING = 1
_FSCONFIG_CMD_CREATE = 6

ATTR_RDONLY = 0x1
ATTR_NOSUID = 0x2
ATTR_NODEV = 0x4
_ATTR_IDMAP = 0x100000

MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_NOATIME = 1024
MS_BIND = 0x1000
MS_MOVE = 0x2000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
_MNT_DETACH = 2


class _MountAttr(foreign.Structure):
    _fields_ = (
        ("attr_set", foreign.c_uint64),
        ("attr_clr", foreign.c_uint64),
        ("propagation", foreign.c_uint64),
        ("userns_fd", foreign.c_uint64),
    )


def clone_tree(path: str, *, recursive: bool = True) -> int:
    """A detached copy of the mount at `path`, as a descriptor."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    return syscall("open_tree", _AT_FDCWD, os.fsencode(path), flags)


def clone_tree_below(directory: str, path: str) -> int:
    """As `clone_tree`, of what is at a relative path below a directory; "" is the directory itself. No link on the way
    is followed, whoever changes the directory meanwhile. Raises OSError (ELOOP for a link)."""
    at = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in path.split("/") if path else ():
            if part in ("", ".", ".."):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
            below = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
            if stat.S_ISLNK(os.fstat(at).st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE | _AT_EMPTY_PATH
        return syscall("open_tree", at, b"", flags)
    finally:
        os.close(at)


def set_attributes(fd: int, attributes: int, *, recursive: bool = True) -> None:
    """Add ATTR_* to the mount (and those below it) that `fd` is the root of."""
    attr = _MountAttr(attributes, 0, 0, 0)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    syscall("mount_setattr", fd, b"", flags, foreign.byref(attr), foreign.sizeof(attr))


def map_ids(fd: int, user_namespace: int) -> None:
    """Show the files of a detached mount with other owners: as the id map of that user namespace says (Linux 5.12).

    Raises OSError EINVAL where the file system cannot do it.
    """
    attr = _MountAttr(_ATTR_IDMAP, 0, 0, user_namespace)
    syscall("mount_setattr", fd, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, foreign.byref(attr), foreign.sizeof(attr))


def attach(fd: int, target: str) -> None:
    """Put a detached mount at `target`."""
    syscall("move_mount", fd, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)


def new_filesystem(kind: str, attributes: int, **options: str) -> int:
    """A detached mount of a new filesystem instance, as a descriptor."""
    context = syscall("fsopen", kind.encode(), _FSOPEN_CLOEXEC)
    try:
        for key, value in options.items():
            syscall("fsconfig", context, _FSCONFIG_SET_STRING, key.encode(), value.encode(), 0)
        syscall("fsconfig", context, _FSCONFIG_CMD_CREATE, 0, 0, 0)
        return syscall("fsmount", context, _FSMOUNT_CLOEXEC, attributes)
    finally:
        os.close(context)


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    check(
        f"mount {target}",
        libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode() if kind else None,
            foreign.c_ulong(flags),
            data.encode() if data else None,
        ),
    )


def bind(source: str, target: str) -> None:
    """Bind-mount one directory or file at another place."""
    mount(source, target, None, MS_BIND)


def detach(target: str) -> None:
    """Unmount lazily: gone from the tree at once, released when the last user is."""
    check(f"umount {target}", libc.umount2(os.fsencode(target), _MNT_DETACH))


def unmount(target: str) -> None:
    """Unmount at once. Raises OSError EBUSY while something uses it."""
    check(f"umount {target}", libc.umount2(os.fsencode(target), 0))


def below(directory: str, process: str = "self", *, source: str | None = None) -> list[str]:
    """Where something is mounted at or below a directory, in the view of a process, the deepest first; only what has
    that `source`, if one is given. Raises OSError."""
    with open(f"/proc/{process}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        lines = file.read().splitlines()
    points = [
        _unescape(line.split(" ", 5)[4])
        for line in lines
        if source is None or line.partition(" - ")[2].split(" ")[1:2] == [source]
    ]
    found = {point for point in points if point == directory or point.startswith(f"{directory.rstrip('/')}/")}
    return sorted(found, key=len, reverse=True)


def _unescape(field: str) -> str:
    """Blanks and their like, which mountinfo writes as a backslash and three octal digits."""
    first, *rest = field.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


def make_private() -> None:
    """Stop mounts of this namespace from travelling to others."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)


def pivot_here() -> None:
    """Make the current directory the root and let the old root go."""
    syscall("pivot_root", b".", b".")
    detach(".")
    os.chdir("/")
