# SPDX-License-Identifier: MIT
"""The digest of a file's content, and the copying of large files.

A small file's digest is the SHA-256 of its bytes. A large one may have holes of a terabyte, so its digest is taken over
its blocks that are not all zeros, each with its number: the same bytes give the same digest however they are allocated,
and holes cost nothing.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator

LARGE_BYTES = 1 << 20
_BLOCK = 1 << 16
_READ = 1 << 22
_ZEROS = bytes(_BLOCK)
_FICLONE = 0x40049409
_NO_CLONE = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.EPERM, errno.ENOSYS, errno.EBADF)


def digest_of_bytes(content: bytes) -> str:
    """The digest of a small file."""
    return hashlib.sha256(content).hexdigest()


def digest_of(fd: int, size: int) -> str:
    """The digest of an open file of that size, however large. Raises OSError."""
    if size < LARGE_BYTES:
        return digest_of_bytes(read_all(fd, size))
    whole = hashlib.sha256(b"blocks\0%d\0" % size)
    for start, end in data_ranges(fd, size):
        at = start - start % _BLOCK
        while at < end:
            data = os.pread(fd, min(_READ, end - at, size - at), at)
            if not data:
                break
            if len(data) % _BLOCK and at + len(data) < size:
                # A block counts as a whole, whatever the holes around it.
                data = os.pread(fd, min(size - at, len(data) + _BLOCK - len(data) % _BLOCK), at)
            view = memoryview(data)
            for begin in range(0, len(data), _BLOCK):
                block = view[begin : begin + _BLOCK]
                if block != _ZEROS[: len(block)]:
                    whole.update(b"%d\0" % ((at + begin) // _BLOCK))
                    whole.update(block)
            at += len(data)
    return whole.hexdigest()


def read_all(fd: int, size: int) -> bytes:
    """Up to `size` bytes from the beginning of an open file; fewer where it is shorter by now. Raises OSError."""
    parts = []
    at = 0
    while at < size:
        data = os.pread(fd, size - at, at)
        if not data:
            break
        parts.append(data)
        at += len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def data_ranges(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Where an open file has data, in whole blocks and each block once; everything where its file system does not
    say. Raises OSError."""
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
            end = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            if error.errno != errno.EINVAL:
                raise
            start, end = at, size
        start = max(start - start % _BLOCK, at)
        end = min(end + -end % _BLOCK, size)
        yield start, end
        at = end


def copy_large(source: int, target: int, size: int) -> None:
    """Copy an open file into an empty one: as a clone where the file system can, else its data without its holes.
    Raises OSError."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
        os.ftruncate(target, size)
        return
    except OSError as error:
        if error.errno not in _NO_CLONE:
            raise
    for start, end in data_ranges(source, size):
        at = start
        while at < end:
            data = os.pread(source, min(_READ, end - at), at)
            if not data:
                break
            write_at(target, data, at)
            at += len(data)
    os.ftruncate(target, size)


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all bytes. Raises OSError."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest = rest[written:]
        offset += written
