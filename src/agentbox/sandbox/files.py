# SPDX-License-Identifier: MIT
"""Files of a sandbox, read and written by the agent as the box's user: a link leads where it leads inside, never on the
host. Nothing here holds a whole file in memory unless it is asked for one."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Protocol

from agentbox.errors import SandboxError
from agentbox.isolation.durable import WORKSPACE
from agentbox.sandbox.file_info import FileInfo
from agentbox.sandbox.file_record import Note, recorded
from agentbox.sandbox.link import AgentLink
from agentbox.sandbox.operation import Operation
from agentbox.sandbox.writing import write_new

_PIECE_BYTES = 1 << 20
_TYPES = {
    "f": "file", "d": "directory", "l": "link", "p": "fifo", "s": "socket", "c": "device", "b": "device",
}  # fmt: skip


class Linked(Protocol):
    """Who has a stream to an agent."""

    async def link(self) -> AgentLink:
        """See AsyncSandbox."""


class Files:
    """Paths are absolute in the box, or relative to /work. All methods raise OSError with the path and errno as local
    files would (FileNotFoundError, IsADirectoryError, PermissionError, ENOSPC), and SandboxError."""

    def __init__(self, sandbox: Linked, note: Note = lambda *_: None) -> None:
        """`note` gets what is to be recorded."""
        self._sandbox = sandbox
        self._note = note

    async def _operate(self, *argv: str, stdin: bool = False, user: str = "") -> Operation:
        if any("\0" in word for word in argv):
            raise ValueError("a path cannot hold a zero byte")
        return await Operation.start(await self._sandbox.link(), argv[1], argv, user, stdin=stdin)

    async def stream(self, path: str, *, offset: int = 0, length: int = -1, user: str = "") -> AsyncIterator[bytes]:
        """A file's bytes, piece by piece; `length` -1 is up to its end."""
        target = absolute(path)
        asked = {"path": target, "user": user, "offset": offset or None, "length": length if length >= 0 else None}
        with recorded(self._note, "file.read", asked) as record:
            operation = await self._operate("read", target, str(offset), str(length), user=user)
            async for piece in operation.pieces():
                record.passed(piece)
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
        """Write a file, with its parents. `how` is "replace" (all at once: nobody sees half of it), "append" or "new"
        (FileExistsError). `mode` are permission bits; None keeps those of a file that exists."""
        octal = "-" if mode is None else f"{mode & 0o777:o}"
        target = absolute(path)
        asked = {"path": target, "user": user, "how": how, "mode": None if mode is None else octal}
        with recorded(self._note, "file.write", asked) as record:
            operation = await self._operate("write", target, octal, how, stdin=True, user=user)

            async def send(piece: bytes) -> None:
                record.passed(piece)
                await operation.send(piece)

            try:
                if isinstance(data, str):
                    await send(data.encode())
                elif isinstance(data, bytes | bytearray | memoryview):
                    await send(bytes(data))
                elif isinstance(data, AsyncIterable):
                    async for piece in data:
                        await send(piece)
                else:
                    for piece in data:
                        await send(piece)
            except BaseException:
                operation.abandon()
                raise
            await operation.finish()

    async def list(self, path: str = ".", *, depth: int = 1, user: str = "", max_entries: int = -1) -> list[FileInfo]:
        """What is in a directory, by path; `depth` -1 is all below it, 256 levels deep at most. Raises OSError
        (EOVERFLOW) when there are more than `max_entries`, -1 for no bound."""
        target = absolute(path)
        with recorded(self._note, "file.list", {"path": target, "depth": depth, "user": user}) as record:
            operation = await self._operate("list", target, str(depth or 1), user=user)
            found = await _entries(operation, max_entries)
            if 0 <= max_entries < len(found):
                raise OSError(errno.EOVERFLOW, os.strerror(errno.EOVERFLOW), target)
            record.found(entries=len(found))
        return sorted(found, key=lambda one: one.path)

    async def info(self, path: str, *, user: str = "") -> FileInfo:
        """What is at a path; of a link, the link itself."""
        found = await _entries(await self._operate("list", absolute(path), "0", user=user))
        if not found:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found[0]

    async def exists(self, path: str) -> bool:
        """Whether something is there; a link counts itself."""
        try:
            await self.info(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def make_directory(self, path: str, *, mode: int = 0o755, user: str = "") -> None:
        """Make a directory with its parents; one that exists is no error."""
        await self._simple("mkdir", absolute(path), f"{mode & 0o777:o}", user=user)

    async def remove(self, path: str, *, user: str = "") -> None:
        """Remove a file, or a directory with all that is in it."""
        await self._simple("remove", absolute(path), user=user)

    async def rename(self, path: str, to: str, *, user: str = "") -> None:
        """Give it another name, over what has that name."""
        await self._simple("rename", absolute(path), absolute(to), user=user)

    async def _simple(self, *argv: str, user: str) -> None:
        named = {"path": argv[1]}
        if argv[0] == "rename":
            named["to"] = argv[2]
        elif argv[0] == "mkdir":
            named["mode"] = argv[2]
        with recorded(self._note, f"file.{argv[0]}", {**named, "user": user}):
            await (await self._operate(*argv, user=user)).finish(end_input=False)

    async def download(
        self, path: str, to: str | os.PathLike[str], *, told: Callable[[int], None] | None = None
    ) -> int:
        """Copy a file or a directory to a path of the host, which must not exist. Links and what is no file are left
        out: nothing of the guest's leads the host anywhere. Returns how many bytes were copied; `told` is called with
        how many were so far."""
        target = os.fspath(to)
        tell = told or (lambda _: None)
        if (await self.info(path)).kind != "directory":
            return await write_new(self.stream(path), target, tell)
        base = absolute(path)
        await asyncio.to_thread(os.mkdir, target, 0o755)
        copied = 0
        for entry in await self.list(base, depth=-1):
            parts = posixpath.relpath(entry.path, base).split("/")
            if any(part in ("", ".", "..") for part in parts):
                raise SandboxError(f"{entry.path}: the box names a file outside of its directory")
            local = os.path.join(target, *parts)
            if entry.kind == "directory":
                await asyncio.to_thread(os.mkdir, local, 0o755)
            elif entry.kind == "file":
                copied += await write_new(self.stream(entry.path), local, _beyond(tell, copied))
        return copied

    async def upload(
        self, source: str | os.PathLike[str], path: str, *, told: Callable[[int], None] | None = None
    ) -> int:
        """Copy a file or a directory of the host into the box, with permission bits. Links in a directory are left out.
        Returns how many bytes were copied; `told` is called with how many were so far."""
        local = os.fspath(source)
        tell = told or (lambda _: None)
        entries = await asyncio.to_thread(_local_entries, local)
        copied = 0
        for relative, directory in entries:
            inside = posixpath.join(absolute(path), relative) if relative else absolute(path)
            if directory:
                await self.make_directory(inside)
            else:
                one = os.path.join(local, relative) if relative else local
                copied += await self._upload_file(one, inside, _beyond(tell, copied))
        return copied

    async def _upload_file(self, local: str, path: str, tell: Callable[[int], None]) -> int:
        with await asyncio.to_thread(open, local, "rb") as file:
            status = os.fstat(file.fileno())

            async def pieces() -> AsyncIterator[bytes]:
                size = 0
                while piece := await asyncio.to_thread(file.read, _PIECE_BYTES):
                    yield piece
                    size += len(piece)
                    tell(size)

            await self.write(path, pieces(), mode=status.st_mode & 0o777)
            return status.st_size


def _beyond(tell: Callable[[int], None], before: int) -> Callable[[int], None]:
    return lambda size: tell(before + size)


def _local_entries(local: str) -> list[tuple[str, bool]]:
    """Relative paths of what is to be copied, and which are directories, parents first."""
    if not os.path.isdir(local):
        return [("", False)]
    found = []
    for directory, below, names in os.walk(local):
        below.sort()
        relative = os.path.relpath(directory, local)
        prefix = "" if relative == "." else relative
        found.append((prefix, True))
        for name in sorted(names):
            one = os.path.join(directory, name)
            if os.path.isfile(one) and not os.path.islink(one):
                found.append((os.path.join(prefix, name), False))
    return found


def absolute(path: str) -> str:
    """The path as it is asked for inside; a relative one is below /work."""
    joined = posixpath.join(WORKSPACE, path)
    # `a/../b` is the guest's to resolve, who may have links.
    return joined if ".." in joined.split("/") else posixpath.normpath(joined)


async def _entries(operation: Operation, most: int = -1) -> list[FileInfo]:
    """All of them, or a few more than `most`."""
    pending = bytearray()
    found = []
    async for piece in operation.pieces():
        pending += piece
        *records, rest = bytes(pending).split(b"\0\0")
        pending = bytearray(rest)
        found += [_entry(record) for record in records]
        if 0 <= most < len(found):
            operation.abandon()
            break
    return found


def _entry(record: bytes) -> FileInfo:
    head, _, names = record.partition(b"\t")
    try:
        kind, mode, size, modified, uid, gid = head.decode("ascii").split()
        path, _, target = names.partition(b"\0")
        return FileInfo(
            path=path.decode("utf-8", "surrogateescape"),
            kind=_TYPES[kind],
            size=int(size),
            mode=int(mode, 8) & 0o7777,
            modified=int(modified) / 1e9,
            uid=int(uid),
            gid=int(gid),
            target=target.decode("utf-8", "surrogateescape") if kind == "l" else None,
        )
    except (ValueError, KeyError) as error:
        raise SandboxError(f"the agent in the box described a file in a way that makes no sense: {error}") from error


__all__ = ["FileInfo", "Files"]
