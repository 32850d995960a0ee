# SPDX-License-Identifier: MIT
"""Files in a box behind a server. Whole directories travel as one stream of tar; nothing holds a whole file in memory
unless it is asked for one."""

from __future__ import annotations

import asyncio
import base64
import builtins
import errno
import os
import stat
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from agentbox.sandbox import tarring
from agentbox.sandbox.file_info import FileInfo
from agentbox.sandbox.files import absolute
from agentbox.sandbox.line import Body, FileBody, Line
from agentbox.sandbox.writing import write_new

# The server may be busy with what is on its way for as long as this.
_TRANSFER_SECONDS = 600.0
_SILENCE_SECONDS = 120.0


class RemoteFiles:
    """See files.Files. `path` gives that of the sandbox on the line's server, or raises SandboxError."""

    def __init__(self, line: Line, path: Callable[[], str]) -> None:
        self._line = line
        self._path = path

    def _query(self, path: str, user: str = "", **more: object) -> dict[str, object]:
        return {**_named("path", path), "user": user or None, **more}

    async def stream(self, path: str, *, offset: int = 0, length: int = -1, user: str = "") -> AsyncIterator[bytes]:
        """A file's bytes, piece by piece; `length` -1 is up to its end."""
        query = self._query(path, user, offset=offset or None, length=length if length >= 0 else None)
        async with self._line.open("GET", f"{self._path()}/files", about=absolute(path), query=query) as answer:
            async for piece in answer.pieces(_SILENCE_SECONDS):
                yield piece

    async def read(self, path: str, *, offset: int = 0, length: int = -1, max_bytes: int = -1, user: str = "") -> bytes:
        """A file's bytes. Raises OSError (EFBIG) when there are more than `max_bytes`, -1 for no bound."""
        pieces, size = [], 0
        async for piece in self.stream(path, offset=offset, length=length, user=user):
            size += len(piece)
            if 0 <= max_bytes < size:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
            pieces.append(piece)
        return b"".join(pieces)

    async def read_text(self, path: str, *, user: str = "") -> str:
        """A file's text. Raises UnicodeDecodeError where it is not UTF-8."""
        return (await self.read(path, user=user)).decode()

    async def write(
        self,
        path: str,
        data: str | bytes | Iterable[bytes] | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        how: str = "replace",
        user: str = "",
    ) -> None:
        """Write a file, with its parents; see files.Files.write."""
        await self._put(path, data, None, mode=mode, how=how, user=user)

    async def _put(
        self,
        path: str,
        data: str | bytes | Iterable[bytes] | AsyncIterable[bytes] | FileBody,
        length: int | None,
        *,
        mode: int | None,
        how: str,
        user: str = "",
    ) -> None:
        query = self._query(path, user, how=how, mode=None if mode is None else f"{mode & 0o777:04o}")
        body: Body
        if isinstance(data, str):
            body = data.encode()
        elif isinstance(data, bytes | bytearray | memoryview):
            body = bytes(data)
        elif isinstance(data, AsyncIterable | FileBody):
            body = data
        else:
            body = _pieces(data)
        await self._line.ask(
            "PUT",
            f"{self._path()}/files",
            about=absolute(path),
            query=query,
            body=body,
            again=how == "replace",
            length=len(body) if isinstance(body, bytes) else length,
            seconds=_TRANSFER_SECONDS,
        )

    async def list(self, path: str = ".", *, depth: int = 1, user: str = "") -> builtins.list[FileInfo]:
        """What is in a directory, by path; `depth` -1 is all below it, 256 levels deep at most."""
        query = self._query(path, user, depth=depth)
        found = await self._line.ask("GET", f"{self._path()}/files/list", about=absolute(path), query=query)
        return sorted((_info(one) for one in found["entries"]), key=lambda one: one.path)

    async def info(self, path: str, *, user: str = "") -> FileInfo:
        """What is at a path; of a link, the link itself."""
        query = self._query(path, user)
        return _info(await self._line.ask("GET", f"{self._path()}/files/info", about=absolute(path), query=query))

    async def exists(self, path: str) -> bool:
        """Whether something is there; a link counts itself."""
        try:
            await self.info(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def make_directory(self, path: str, *, mode: int = 0o755, user: str = "") -> None:
        """Make a directory with its parents; one that exists is no error."""
        value = {**_named("path", path), "mode": f"{mode & 0o777:04o}"}
        await self._line.ask(
            "POST", f"{self._path()}/files/directory", about=absolute(path), query={"user": user or None}, value=value
        )

    async def remove(self, path: str, *, user: str = "") -> None:
        """Remove a file, or a directory with all that is in it."""
        await self._line.ask(
            "DELETE",
            f"{self._path()}/files",
            about=absolute(path),
            query=self._query(path, user),
            seconds=_TRANSFER_SECONDS,
        )

    async def rename(self, path: str, to: str, *, user: str = "") -> None:
        """Give it another name, over what has that name."""
        value = {**_named("path", path), **_named("to", to)}
        await self._line.ask(
            "POST", f"{self._path()}/files/move", about=absolute(path), query={"user": user or None}, value=value
        )

    async def download(
        self, path: str, to: str | os.PathLike[str], *, told: Callable[[int], None] | None = None
    ) -> int:
        """Copy a file or a directory to a path of this machine, which must not exist; see files.Files.download."""
        target = os.fspath(to)
        tell = told or (lambda _: None)
        if (await self.info(path)).kind != "directory":
            return await write_new(self.stream(path), target, tell)
        return (await self.fetch(path, target, tell)).size_bytes

    async def fetch(self, path: str, to: str, tell: Callable[[int], None] = lambda _: None) -> tarring.Unpacked:
        """Copy a directory to a new one of this machine, without links and what is neither file nor directory."""
        async with self._line.open(
            "GET",
            f"{self._path()}/files/archive",
            about=absolute(path),
            query=self._query(path),
            seconds=_TRANSFER_SECONDS,
        ) as answer:
            return await tarring.unpack(_counted(answer.pieces(_SILENCE_SECONDS), tell), to)

    async def upload(
        self, source: str | os.PathLike[str], path: str, *, told: Callable[[int], None] | None = None
    ) -> int:
        """Copy a file or a directory of this machine into the box; see files.Files.upload."""
        local = os.fspath(source)
        tell = told or (lambda _: None)
        if not await asyncio.to_thread(os.path.isdir, local):
            with await asyncio.to_thread(open, local, "rb") as file:
                status = os.fstat(file.fileno())
                body: AsyncIterable[bytes] | FileBody = _counted(tarring.file_pieces(file, None), tell)
                known = None
                if stat.S_ISREG(status.st_mode):
                    known, body = status.st_size, FileBody(file, status.st_size, tell)
                await self._put(path, body, known, mode=status.st_mode & 0o777, how="replace")
                return status.st_size
        archive = tarring.Archive(local)
        await self._line.ask(
            "PUT",
            f"{self._path()}/files/archive",
            about=absolute(path),
            query=self._query(path),
            body=_counted(archive.pieces(), tell),
            seconds=_TRANSFER_SECONDS,
        )
        return archive.size_bytes


async def _counted(pieces: AsyncIterator[bytes], tell: Callable[[int], None]) -> AsyncIterator[bytes]:
    size = 0
    async for piece in pieces:
        yield piece
        size += len(piece)
        tell(size)


def _named(name: str, path: str) -> dict[str, str]:
    if "\0" in path:
        raise ValueError("a path cannot hold a zero byte")
    return {name: absolute(path)}


async def _pieces(data: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


def _info(found: Mapping[str, Any]) -> FileInfo:
    mode, encoded = found["mode"], found.get("path_b64")
    raw = base64.b64decode(encoded) if encoded else str(found["path"]).encode()
    return FileInfo(
        path=raw.decode("utf-8", "surrogateescape"),
        kind=str(found["kind"]),
        size=int(found["size"]),
        mode=int(mode, 8) if isinstance(mode, str) else int(mode),
        modified=float(found["modified"]),
        uid=int(found["uid"]),
        gid=int(found["gid"]),
        target=found.get("target"),
    )
