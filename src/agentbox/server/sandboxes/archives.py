# SPDX-License-Identifier: MIT
"""Directories of a box as streams of tar, made and unpacked inside by its own `tar`, as the box's user; where it has
none, by the agent's operations, file by file."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import tarfile
from collections.abc import AsyncIterator
from typing import IO, Any, cast

from agentbox.errors import SandboxError, WorkspaceError
from agentbox.sandbox.files import absolute
from agentbox.sandbox.frames import ToHost
from agentbox.sandbox.link import AgentLink
from agentbox.sandbox.operation import Operation
from agentbox.sandbox.tarring import Source
from agentbox.server.sandboxes.kept import KeptSandbox

_BLOCK_BYTES = tarfile.BLOCKSIZE
_PIECE_BYTES = 1 << 18
_KEPT_WORDS = 2000
_MAX_ENTRIES = 1_000_000


class TarProgram(Operation):
    """A run of the box's tar. `said` is the beginning of its stderr, `exit_code` None while it runs."""

    def __init__(self, link: AgentLink, path: str) -> None:
        super().__init__(link, path)
        self.said = b""

    def hear(self, kind: ToHost, payload: bytes) -> None:
        """See Operation."""
        if kind is ToHost.STDERR:
            self.said += payload[: max(0, _KEPT_WORDS - len(self.said))]
            self._link.taken(self._number, len(payload))
        super().hear(kind, payload)

    @property
    def exit_code(self) -> int | None:
        """128+n after signal n."""
        if self._status is None:
            return None
        return 128 + os.WTERMSIG(self._status) if os.WIFSIGNALED(self._status) else os.WEXITSTATUS(self._status)

    def _conclude(self) -> None:
        self._check()
        # 1: files changed while they were read.
        if (self.exit_code or 0) > 1:
            raise WorkspaceError(f"tar in the box: {self.said.decode(errors='replace').strip() or self.exit_code}")


async def pack(sandbox: KeptSandbox, path: str, user: str) -> AsyncIterator[bytes]:
    """A directory as tar. Raises OSError, SandboxError, WorkspaceError."""
    info = await sandbox.files.info(path, user=user)
    if info.kind != "directory":
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), info.path)
    inside = absolute(path)
    begun = False
    try:
        program = await _start(sandbox, inside, ("--ignore-failed-read", "-cf", "-", "."), user, stdin=False)
        async for piece in program.pieces():
            begun = True
            yield piece
    except (FileNotFoundError, WorkspaceError):
        # No tar, or one that does not know the option.
        if begun:
            raise
        async for piece in _pack_one_by_one(sandbox, inside, user):
            yield piece


async def unpack(sandbox: KeptSandbox, path: str, pieces: AsyncIterator[bytes], user: str) -> None:
    """Unpack tar into a directory, made where it is not there. Raises OSError, SandboxError, WorkspaceError."""
    inside = absolute(path)
    await sandbox.files.make_directory(inside, user=user)
    try:
        program = await _start(sandbox, inside, ("-o", "-xf", "-"), user, stdin=True)
    except FileNotFoundError:
        await _unpack_one_by_one(sandbox, inside, pieces, user)
        return
    try:
        async for piece in pieces:
            await program.send(piece)
    except OSError:
        # It has ended before it had read everything; why is said below.
        pass
    except BaseException:
        program.abandon()
        raise
    await program.finish()
    if program.exit_code:
        raise WorkspaceError(f"tar in the box: {program.said.decode(errors='replace').strip()}")


async def _start(
    sandbox: KeptSandbox, directory: str, options: tuple[str, ...], user: str, *, stdin: bool
) -> TarProgram:
    argv = ("tar", "-C", directory, *options)
    return await TarProgram.start(await sandbox.link(), directory, argv, user, stdin=stdin, own=False)


async def _pack_one_by_one(sandbox: KeptSandbox, directory: str, user: str) -> AsyncIterator[bytes]:
    for entry in await sandbox.files.list(directory, depth=-1, user=user):
        member = tarfile.TarInfo(posixpath.relpath(entry.path, directory))
        member.mode, member.mtime = entry.mode & 0o777, int(entry.modified)
        if entry.kind == "directory":
            member.type = tarfile.DIRTYPE
            yield _head(member)
        elif entry.kind == "link":
            member.type, member.linkname = tarfile.SYMTYPE, entry.target or ""
            yield _head(member)
        elif entry.kind == "file":
            member.size = entry.size
            yield _head(member)
            left = entry.size
            async for piece in sandbox.files.stream(entry.path, length=entry.size, user=user):
                left -= len(piece)
                yield piece
            if left:
                raise SandboxError(f"{entry.path} became shorter while it was read", hint="try again")
            yield bytes(-entry.size % _BLOCK_BYTES)
    yield bytes(2 * _BLOCK_BYTES)


def _head(member: tarfile.TarInfo) -> bytes:
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


async def _pieces(content: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(content.read, _PIECE_BYTES):
        yield piece


async def _unpack_one_by_one(sandbox: KeptSandbox, directory: str, pieces: AsyncIterator[bytes], user: str) -> None:
    loop = asyncio.get_running_loop()
    source = Source(pieces, loop)

    def inside(work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result()

    def read() -> None:
        try:
            with tarfile.open(fileobj=cast("IO[bytes]", source), mode="r|") as archive:
                for count, member in enumerate(archive):
                    parts = [part for part in member.name.split("/") if part not in ("", ".")]
                    if ".." in parts or count > _MAX_ENTRIES:
                        raise WorkspaceError("the archive leads out of its directory, or has too many entries")
                    path = posixpath.join(directory, *parts)
                    if member.isdir():
                        inside(sandbox.files.make_directory(path, mode=member.mode & 0o777, user=user))
                    elif member.isreg() and (content := archive.extractfile(member)) is not None:
                        inside(sandbox.files.write(path, _pieces(content), mode=member.mode & 0o777, user=user))
        except tarfile.TarError as error:
            raise WorkspaceError(f"the archive cannot be read: {error}") from error

    work = asyncio.ensure_future(asyncio.to_thread(read))
    try:
        await asyncio.shield(work)
    except BaseException:
        source.stop()
        await asyncio.wait((work,))
        raise
