# SPDX-License-Identifier: MIT
"""The agent's own operations on files, each in a process of its own, as the user of its request."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable

from .protocol import MAX_OUTPUT


def write_all(fd: int, data: bytes | bytearray) -> None:
    """Write all of it to a descriptor that blocks. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _make_parents(path: str) -> None:
    try:
        os.makedirs(os.path.dirname(path) or "/", 0o755, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error


def _read_file(begun: Callable[[], None], path: str, offset: str, length: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "not a regular file")
    left = int(length)
    if int(offset):
        os.lseek(fd, int(offset), os.SEEK_SET)
    begun()
    while left:
        piece = os.read(fd, min(left, MAX_OUTPUT) if left > 0 else MAX_OUTPUT)
        if not piece:
            break
        write_all(1, piece)
        left -= len(piece) if left > 0 else 0


def _copy(source: int, fd: int) -> None:
    while True:
        piece = os.read(source, MAX_OUTPUT)
        if not piece:
            return
        write_all(fd, piece)


def _write_in_place(begun: Callable[[], None], path: str, flags: int, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags, mode)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    begun()
    _copy(0, fd)


def _put_in_place(fd: int, beside: str, path: str) -> None:
    """Over a file that something is mounted on, as on one that alone is shown of a directory, nothing can be renamed:
    that is written anew."""
    # What a file system tells of its writes no sooner than a descriptor of it is closed.
    os.close(os.dup(fd))
    try:
        os.rename(beside, path)
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.EXDEV):
            raise
        to = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        os.lseek(fd, 0, os.SEEK_SET)
        _copy(fd, to)
        os.close(to)
        os.unlink(beside)


def _write_file(begun: Callable[[], None], path: str, octal: str, how: str) -> None:
    mode = 0o644 if octal == "-" else int(octal, 8) & 0o777
    _make_parents(path)
    if how == "new":
        _write_in_place(begun, path, os.O_CREAT | os.O_EXCL, mode)
        return
    if how == "append":
        _write_in_place(begun, path, os.O_CREAT | os.O_APPEND, mode)
        return
    if how != "replace":
        raise OSError(errno.EINVAL, "how")
    status: os.stat_result | None = None
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(path)
    if status is not None:
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL, "not a regular file")
        if not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            raise OSError(errno.EACCES, "not writable")
        path = os.path.realpath(path)
        if octal == "-":
            mode = status.st_mode & 0o777
    # Process ids begin anew in each box: what a write left that was cut off, here or in the box that this is a fork of,
    # must not be in the way.
    beside = os.path.join(os.path.dirname(path), f".agentbox-{os.urandom(8).hex()}")
    try:
        fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if status is None or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        _write_in_place(begun, path, os.O_TRUNC, mode)
        return
    begun()
    try:
        _copy(0, fd)
        os.fchmod(fd, mode)
        _put_in_place(fd, beside, path)
    except OSError:
        os.unlink(beside)
        raise


def _record(path: str) -> bytes:
    status = os.lstat(path)
    kinds = {
        stat.S_IFREG: "f", stat.S_IFDIR: "d", stat.S_IFLNK: "l", stat.S_IFIFO: "p", stat.S_IFSOCK: "s",
        stat.S_IFCHR: "c",
    }  # fmt: skip
    kind = kinds.get(stat.S_IFMT(status.st_mode), "b")
    text = (
        f"{kind} {stat.S_IMODE(status.st_mode):o} {status.st_size} {status.st_mtime_ns} {status.st_uid} "
        f"{status.st_gid}\t{path}"
    )
    if kind == "l":
        text += "\0" + os.readlink(path)
    return os.fsencode(text + "\0\0")


def _list_files(begun: Callable[[], None], path: str, depth: str) -> None:
    if int(depth) == 0:
        record = _record(path)
        begun()
        write_all(1, record)
        return
    with os.scandir(path) as first:
        names = [entry.name for entry in first]
    begun()
    base = path.rstrip("/")
    pending = [f"{base}/{name}" for name in names]
    while pending:
        one = pending.pop()
        try:
            write_all(1, _record(one))
            if int(depth) < 0 and stat.S_ISDIR(os.lstat(one).st_mode):
                pending += [f"{one}/{name}" for name in os.listdir(one)]
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise


def _make_directory(begun: Callable[[], None], path: str, octal: str) -> None:
    del begun
    _make_parents(path)
    try:
        os.mkdir(path, int(octal, 8) & 0o777)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def _remove(begun: Callable[[], None], path: str) -> None:
    del begun
    try:
        os.unlink(path)
        return
    except OSError:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise
    # Two descriptors however deep it is, and never through a link.
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    here = os.open(path, flags)
    names: list[str] = []
    while True:
        down = None
        for name in os.listdir(here):
            try:
                os.unlink(name, dir_fd=here)
            except FileNotFoundError:
                pass
            except OSError:
                if not stat.S_ISDIR(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
                    raise
                down = name
                break
        if down is None and not names:
            os.close(here)
            break
        following = os.open(down or "..", flags, dir_fd=here)
        os.close(here)
        here = following
        if down is not None:
            names.append(down)
        else:
            os.rmdir(names.pop(), dir_fd=here)
    os.rmdir(path)


def _rename(begun: Callable[[], None], path: str, to: str) -> None:
    del begun
    os.rename(path, to)


_OPERATIONS: dict[str, tuple[int, Callable[..., None]]] = {
    "read": (3, _read_file),
    "write": (3, _write_file),
    "list": (2, _list_files),
    "mkdir": (2, _make_directory),
    "remove": (1, _remove),
    "rename": (2, _rename),
}


def operate(argv: list[str], begun: Callable[[], None]) -> None:
    """Run the operation; `begun` is called before its first byte. Raises OSError."""
    known = _OPERATIONS.get(argv[0])
    if known is None or known[0] != len(argv) - 1:
        raise OSError(errno.EINVAL, "no such operation")
    known[1](begun, *argv[1:])
