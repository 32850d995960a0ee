# SPDX-License-Identifier: MIT
"""Directories as streams of tar, made and read piece by piece: memory does not depend on how much there is.

What comes out of a box may name what it likes: only regular files and directories are taken, below a new directory in
which no link is ever made, so that no name leads anywhere else.
"""

from __future__ import annotations

import asyncio
import os
import tarfile
from collections.abc import AsyncIterator, Iterator
from typing import IO, cast

from agentbox.errors import WorkspaceError
from agentbox.records import dataclass
from agentbox.sandbox.writing import write_all

_PIECE_BYTES = 1 << 18
_BLOCK_BYTES = tarfile.BLOCKSIZE
_MAX_ENTRIES = 1_000_000
_MOST_LEFT_OUT = 100


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What was taken out of an archive, and what was left out with the reason, the first hundred."""

    files: int
    size_bytes: int
    left_out: tuple[str, ...]


async def unpack(pieces: AsyncIterator[bytes], to: str) -> Unpacked:
    """Unpack a stream to the directory `to`, which must not exist. Raises OSError, WorkspaceError."""
    loop = asyncio.get_running_loop()
    source = Source(pieces, loop)
    work = asyncio.ensure_future(asyncio.to_thread(_unpack, source, to))
    try:
        return await asyncio.shield(work)
    except BaseException:
        source.stop()
        # The thread ends at its next read.
        await asyncio.wait((work,))
        raise


class Source:
    """An asynchronous stream as a file that a thread reads."""

    def __init__(self, pieces: AsyncIterator[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._pieces = pieces
        self._loop = loop
        self._pending = memoryview(b"")
        self._stopped = False

    def stop(self) -> None:
        """Nobody wants it any more."""
        self._stopped = True

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes, fewer at the end."""
        parts = []
        while size:
            if not self._pending:
                if self._stopped:
                    raise WorkspaceError("the transfer was given up")
                self._pending = memoryview(asyncio.run_coroutine_threadsafe(self._next(), self._loop).result())
                if not self._pending:
                    break
            part, self._pending = self._pending[:size], self._pending[size:]
            size -= len(part)
            parts.append(part)
        return b"".join(parts)

    async def _next(self) -> bytes:
        async for piece in self._pieces:
            if piece:
                return piece
        return b""


def _unpack(source: Source, to: str) -> Unpacked:
    os.mkdir(to, 0o755)
    files = size = entries = 0
    left_out: list[str] = []
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", source), mode="r|", bufsize=_PIECE_BYTES) as archive:
            for member in archive:
                entries += 1
                if entries > _MAX_ENTRIES:
                    raise WorkspaceError(
                        f"the directory holds more than {_MAX_ENTRIES} entries", hint="copy it in parts"
                    )
                parts = [part for part in member.name.split("/") if part not in ("", ".")]
                local = os.path.join(to, *parts)
                if ".." in parts or "\0" in member.name:
                    raise WorkspaceError(f"{member.name!r}: the box names a file outside of its directory")
                if member.isdir():
                    os.makedirs(local, 0o755, exist_ok=True)
                elif member.isreg():
                    os.makedirs(os.path.dirname(local), 0o755, exist_ok=True)
                    size += _store(archive, member, local)
                    files += 1
                elif len(left_out) < _MOST_LEFT_OUT:
                    left_out.append(f"{member.name}: no file and no directory")
            # The end of the stream belongs to the answer.
            while source.read(_PIECE_BYTES):
                pass
    except tarfile.TarError as error:
        raise WorkspaceError(f"the archive of the box cannot be read: {error}", hint="try again") from error
    return Unpacked(files, size, tuple(left_out))


def _store(archive: tarfile.TarFile, member: tarfile.TarInfo, local: str) -> int:
    content = archive.extractfile(member)
    if content is None:
        return 0
    fd = os.open(local, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    copied = 0
    try:
        while piece := content.read(_PIECE_BYTES):
            write_all(fd, piece)
            copied += len(piece)
        os.fchmod(fd, (member.mode & 0o777) | 0o600)
    finally:
        os.close(fd)
    if copied != member.size:
        raise WorkspaceError(f"{member.name}: the archive ends in the middle of it", hint="try again")
    return copied


class Archive:
    """A directory of this machine as a stream of tar: its regular files and directories, with permission bits; links
    in it are left out. `size_bytes` is how much of files was given out so far."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.size_bytes = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        """The stream."""
        entries = await asyncio.to_thread(lambda: list(_entries(self._directory)))
        small = bytearray()
        for relative, path, is_directory in entries:
            status = await asyncio.to_thread(os.lstat, path)
            small += _header(relative, status, is_directory=is_directory)
            if not is_directory:
                with await asyncio.to_thread(open, path, "rb") as file:
                    if small:
                        yield bytes(small)
                        small.clear()
                    async for piece in file_pieces(file, status.st_size):
                        self.size_bytes += len(piece)
                        yield piece
                small += bytes(-status.st_size % _BLOCK_BYTES)
            if len(small) > _PIECE_BYTES:
                yield bytes(small)
                small.clear()
        yield bytes(small) + bytes(2 * _BLOCK_BYTES)


async def file_pieces(file: IO[bytes], size: int | None) -> AsyncIterator[bytes]:
    """The bytes of an open file: exactly `size` of them, or all for None. Raises OSError for one that became
    shorter."""
    left = size
    while left is None or left:
        piece = await asyncio.to_thread(file.read, _PIECE_BYTES if left is None else min(_PIECE_BYTES, left))
        if not piece:
            if left:
                raise OSError(f"{file.name}: became shorter while it was read")
            return
        if left is not None:
            left -= len(piece)
        yield piece


def _entries(directory: str) -> Iterator[tuple[str, str, bool]]:
    """(name in the archive, path, whether it is a directory), parents first."""
    for above, below, names in os.walk(directory):
        below.sort()
        relative = os.path.relpath(above, directory)
        prefix = "" if relative == "." else relative
        if prefix:
            yield prefix, above, True
        for name in sorted(names):
            path = os.path.join(above, name)
            if os.path.isfile(path) and not os.path.islink(path):
                yield os.path.join(prefix, name), path, False


def _header(name: str, status: os.stat_result, *, is_directory: bool) -> bytes:
    member = tarfile.TarInfo(name)
    member.mode = status.st_mode & 0o777
    member.mtime = int(status.st_mtime)
    member.type = tarfile.DIRTYPE if is_directory else tarfile.REGTYPE
    member.size = 0 if is_directory else status.st_size
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
