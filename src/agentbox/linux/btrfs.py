# SPDX-License-Identifier: MIT
"""The ioctls of btrfs: subvolumes, snapshots of them, a limit for each. Calls raise OSError; none follows a link."""

from __future__ import annotations

import fcntl
import os
import struct

SUPER_MAGIC = 0x9123683E
_FIRST_OBJECT = 256
_MAX_NAME_BYTES = 255
_READ_ONLY = 1 << 1
_PATH_ARGS = 4096
_PATH_NAME = 4088
_LIMIT_REFERENCED = 1
_QUOTAS_ON = 1
_QUOTA_TREE = 8
_QGROUP_INFO = 242
_LAST = (1 << 64) - 1
_SEARCH_BYTES = 4096
_SEARCH_KEY = struct.Struct("=QQQQQQQIIIIQQQQ")
_SEARCH_HEADER = struct.Struct("=QQQII")
_INFO = struct.Struct("=QQQQQ")


def _number(direction: int, command: int, size: int) -> int:
    return direction << 30 | size << 16 | 0x94 << 8 | command


_RESIZE = _number(1, 3, _PATH_ARGS)
_SYNC = 0x94 << 8 | 8
_DESTROY = _number(1, 15, _PATH_ARGS)
_TREE_SEARCH = _number(3, 17, _SEARCH_BYTES)
_INO_LOOKUP = _number(3, 18, _PATH_ARGS)
_SNAPSHOT = _number(1, 23, _PATH_ARGS)
_CREATE = _number(1, 24, _PATH_ARGS)
_QUOTA = _number(3, 40, 16)
_LIMIT = _number(2, 43, 48)


def create(directory: int, name: str) -> None:
    """Make an empty subvolume in an open directory."""
    fcntl.ioctl(directory, _CREATE, _arguments(name))


def snapshot(directory: int, name: str, source: int, *, read_only: bool) -> None:
    """Make a subvolume with the content that an open one has now, what was written to it before included."""
    fcntl.ioctl(directory, _SNAPSHOT, _arguments(name, source, _READ_ONLY if read_only else 0))


def destroy(directory: int, name: str) -> None:
    """Remove a subvolume with all that is in it; its space comes back in the background. ENOTEMPTY where another one
    lies in it."""
    content = struct.pack("=q", 0) + _encoded(name, _PATH_NAME)
    fcntl.ioctl(directory, _DESTROY, bytearray(content))


def is_subvolume(fd: int) -> bool:
    """Whether an open directory is the top of a subvolume."""
    if os.fstat(fd).st_ino != _FIRST_OBJECT:
        return False
    try:
        return _subvolume_id(fd) >= _FIRST_OBJECT
    except OSError:
        # Of another file system, whose numbers mean nothing.
        return False


def enable_quotas(fd: int) -> None:
    """Count, of each subvolume, what it refers to; again does no harm."""
    fcntl.ioctl(fd, _QUOTA, bytearray(struct.pack("=QQ", _QUOTAS_ON, 0)))


def limit(fd: int, size_bytes: int) -> None:
    """Let the subvolume that is open refer to so much at most; 0 takes the limit away."""
    size = size_bytes or _LAST
    fcntl.ioctl(fd, _LIMIT, bytearray(struct.pack("=QQQQQQ", 0, _LIMIT_REFERENCED, size, 0, 0, 0)))


def referenced_bytes(fd: int) -> int:
    """How much the subvolume that is open referred to when its last changes were written out."""
    group = _subvolume_id(fd)
    key = _SEARCH_KEY.pack(_QUOTA_TREE, 0, 0, group, group, 0, _LAST, *(_QGROUP_INFO,) * 2, 1, 0, 0, 0, 0, 0)
    content = bytearray(key.ljust(_SEARCH_BYTES, b"\0"))
    fcntl.ioctl(fd, _TREE_SEARCH, content)
    if not struct.unpack_from("=I", content, 64)[0]:
        return 0
    _, referenced, *_ = _INFO.unpack_from(content, _SEARCH_KEY.size + _SEARCH_HEADER.size)
    return int(referenced)


def grow(fd: int) -> None:
    """Use all of the device."""
    fcntl.ioctl(fd, _RESIZE, bytearray(struct.pack("=q", 0) + _encoded("max", _PATH_NAME)))


def sync(fd: int) -> None:
    """Write everything out."""
    fcntl.ioctl(fd, _SYNC)


def _subvolume_id(fd: int) -> int:
    content = bytearray(struct.pack("=QQ", 0, _FIRST_OBJECT).ljust(_PATH_ARGS, b"\0"))
    fcntl.ioctl(fd, _INO_LOOKUP, content)
    return int(struct.unpack_from("=Q", content)[0])


def _arguments(name: str, fd: int = 0, flags: int = 0) -> bytearray:
    return bytearray(struct.pack("=qQQ32x", fd, 0, flags) + _encoded(name, _PATH_ARGS - 56))


def _encoded(name: str, size: int) -> bytes:
    content = os.fsencode(name)
    if not content or len(content) > _MAX_NAME_BYTES or b"/" in content:
        raise ValueError(f"{name!r} cannot name a subvolume")
    return content.ljust(size, b"\0")
