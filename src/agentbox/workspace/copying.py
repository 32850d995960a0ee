# SPDX-License-Identifier: MIT
"""A copy of a guest's tree: files with their holes, modes, owners, times and links, however deep, no link followed.

Files are shared until they are changed where the file system can do that. Sockets and devices are left out.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

from agentbox.errors import WorkspaceError
from agentbox.workspace.descent import Descent, open_regular

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SHARE = 0x40049409
_PIECE_BYTES = 8 << 20
# A workspace that somebody fills while it is copied ends here.
_MAX_ENTRIES = 20_000_000


def copy_tree(source: Path, target: Path, told: Callable[[int], None] | None = None) -> int:
    """Copy what is in a directory into an empty one, which gets its mode and owner too; returns the bytes of its
    files. `told` hears how many are done. Raises OSError, WorkspaceError; what is there by then is the caller's."""
    from_fd = os.open(source, _DIRECTORY)
    try:
        to_fd = os.open(target, _DIRECTORY)
        try:
            return _Copy(from_fd, to_fd, told).run()
        finally:
            os.close(to_fd)
    finally:
        os.close(from_fd)


class _Copy:
    def __init__(self, from_fd: int, to_fd: int, told: Callable[[int], None] | None) -> None:
        self._from = Descent(from_fd)
        self._to = Descent(to_fd, need=0o700)
        self._told = told
        self._size = 0
        self._entries = 0
        self._links: dict[tuple[int, int], str] = {}
        self._path: list[str] = []
        self._shares = True
        self._owned = os.geteuid() == 0

    def run(self) -> int:
        top = os.fstat(self._from.fd)
        pending = [(top, iter(_names(self._from.fd)))]
        try:
            while pending:
                status, names = pending[-1]
                name = next(names, None)
                if name is None:
                    pending.pop()
                    # Its mode comes last: a directory that its owner may not enter cannot be left again.
                    finished = os.dup(self._to.fd)
                    try:
                        if pending:
                            self._from.leave()
                            self._to.leave()
                            self._path.pop()
                        self._finish(finished, status)
                    finally:
                        os.close(finished)
                    continue
                below = self._entry(name)
                if below is not None:
                    pending.append((below, iter(_names(self._from.fd))))
        finally:
            self._from.close()
            self._to.close()
        return self._size

    def _entry(self, name: str) -> os.stat_result | None:
        """Copy one entry; the status of a directory, which both descents are in now."""
        self._entries += 1
        if self._entries > _MAX_ENTRIES:
            raise WorkspaceError(f"the workspace has more than {_MAX_ENTRIES} entries", hint="remove some")
        try:
            status = os.stat(name, dir_fd=self._from.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            try:
                self._from.enter(name)
            except (FileNotFoundError, NotADirectoryError):
                return None
            os.mkdir(name, 0o700, dir_fd=self._to.fd)
            self._to.enter(name)
            self._path.append(name)
            return status
        if kind == stat.S_IFLNK:
            with contextlib.suppress(FileNotFoundError):
                os.symlink(os.readlink(name, dir_fd=self._from.fd), name, dir_fd=self._to.fd)
                self._own(name, status)
        elif kind == stat.S_IFREG:
            self._file(name, status)
        elif kind == stat.S_IFIFO:
            os.mkfifo(name, stat.S_IMODE(status.st_mode), dir_fd=self._to.fd)
            self._own(name, status)
        return None

    def _file(self, name: str, status: os.stat_result) -> None:
        key = (status.st_dev, status.st_ino)
        if status.st_nlink > 1 and self._linked(key, name):
            return
        try:
            source = open_regular(self._from.fd, name)
        except FileNotFoundError:
            return
        try:
            target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self._to.fd)
            try:
                self._content(source, target)
                self._finish(target, os.fstat(source))
            finally:
                os.close(target)
        finally:
            os.close(source)
        if status.st_nlink > 1:
            self._links[key] = "/".join((*self._path, name))

    def _linked(self, key: tuple[int, int], name: str) -> bool:
        """Whether the file was met under another name, which is now the copy's too."""
        first = self._links.get(key)
        if first is None:
            return False
        depth = len(self._path)
        try:
            os.link("../" * depth + first, name, src_dir_fd=self._to.fd, dst_dir_fd=self._to.fd, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.ENAMETOOLONG, errno.EMLINK, errno.EACCES):
                raise
            return False
        return True

    def _content(self, source: int, target: int) -> None:
        size = os.fstat(source).st_size
        if self._shares:
            try:
                fcntl.ioctl(target, _SHARE, source)
            except OSError:
                # Not here: neither for the others.
                self._shares = False
            else:
                self._count(size)
                return
        at = 0
        while at < size:
            try:
                begin = os.lseek(source, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break
            end = os.lseek(source, begin, os.SEEK_HOLE)
            at = self._piece(source, target, begin, end)
            if at < end:
                break
        os.ftruncate(target, size)

    def _piece(self, source: int, target: int, at: int, end: int) -> int:
        while at < end:
            data = os.pread(source, min(_PIECE_BYTES, end - at), at)
            if not data:
                break
            view = memoryview(data)
            while view:
                written = os.pwrite(target, view, at)
                at += written
                view = view[written:]
            self._count(len(data))
        return at

    def _count(self, size: int) -> None:
        self._size += size
        if self._told is not None:
            self._told(self._size)

    def _own(self, name: str, status: os.stat_result) -> None:
        if self._owned:
            os.chown(name, status.st_uid, status.st_gid, dir_fd=self._to.fd, follow_symlinks=False)
        os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=self._to.fd, follow_symlinks=False)

    def _finish(self, fd: int, status: os.stat_result) -> None:
        if self._owned:
            os.fchown(fd, status.st_uid, status.st_gid)
        os.fchmod(fd, stat.S_IMODE(status.st_mode))
        os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))


def _names(fd: int) -> list[str]:
    with os.scandir(fd) as entries:
        return [entry.name for entry in entries]
