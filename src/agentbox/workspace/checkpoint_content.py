# SPDX-License-Identifier: MIT
"""Where the contents of files are kept: small ones behind each other in one file, each large one in its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agentbox.errors import CheckpointError
from agentbox.workspace.checkpoint_digests import (
    LARGE_BYTES,
    copy_large,
    digest_of,
    digest_of_bytes,
    read_all,
    write_at,
)
from agentbox.workspace.faults import FULL
from agentbox.workspace.names import shown
from agentbox.workspace.placing import write_all

if TYPE_CHECKING:
    from agentbox.workspace.checkpoint_entries import Entry
    from agentbox.workspace.checkpoint_reading import Reading

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FLUSH_BYTES = 4 << 20


class ContentWriter:
    """Keeps contents in a directory of the store. `name` is what that directory will be called; the same content is
    kept once."""

    def __init__(self, dir_fd: int, name: str, pack: str = "content") -> None:
        self._dir = dir_fd
        self._name = name
        self._pack_name = pack
        self._pack = -1
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._size = 0
        self._kept: dict[tuple[str, int], tuple[str, int]] = {}
        self._large = 0

    def keep(self, reading: Reading) -> tuple[str, int, str]:
        """Keep what was read: the file below the store, the offset in it, and the digest of what is kept there. Raises
        OSError."""
        size, digest = reading.status.st_size, reading.digest
        if reading.content is not None:
            size = len(reading.content)
        known = self._kept.get((digest, size))
        if known is None:
            known = self._keep_small(reading.content) if reading.content is not None else None
            if known is None:
                known, digest = self._keep_large(reading.fd, size)
            self._kept[digest, size] = known
        return (*known, digest)

    def _keep_small(self, content: bytes) -> tuple[str, int]:
        offset = self._size
        self._size += len(content)
        self._waiting.append(content)
        self._waiting_bytes += len(content)
        if self._waiting_bytes >= _FLUSH_BYTES:
            self._flush()
        return f"{self._name}/{self._pack_name}", offset

    def _keep_large(self, source: int, size: int) -> tuple[tuple[str, int], str]:
        self._large += 1
        name = f"{self._pack_name}-{self._large}"
        fd = os.open(name, _NEW, 0o600, dir_fd=self._dir)
        try:
            copy_large(source, fd, size)
            # Of the copy: the source may have changed since it was read.
            digest = digest_of(fd, size)
        finally:
            os.close(fd)
        return (f"{self._name}/{name}", 0), digest

    def _flush(self) -> None:
        if self._pack < 0:
            self._pack = os.open(self._pack_name, _NEW, 0o600, dir_fd=self._dir)
        write_all(self._pack, b"".join(self._waiting))
        self._waiting.clear()
        self._waiting_bytes = 0

    def finish(self) -> None:
        """Write what was not written yet. Raises OSError."""
        if self._waiting:
            self._flush()

    def close(self) -> None:
        """Release what is open."""
        if self._pack >= 0:
            os.close(self._pack)
            self._pack = -1


class ContentReader:
    """Gives kept contents, checked against their digests. `store_fd` is the directory of all checkpoints."""

    def __init__(self, store_fd: int) -> None:
        self._store = store_fd
        self._open: dict[str, int] = {}
        self._checked: set[tuple[str, str]] = set()

    def __enter__(self) -> ContentReader:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()

    def check(self, path: str, entry: Entry) -> None:
        """Raise CheckpointError where the content of a file is not what was kept."""
        if entry.size < LARGE_BYTES:
            self.small(path, entry)
            return
        fd = self._file(path, entry)
        if (entry.file, entry.content) in self._checked:
            return
        if os.fstat(fd).st_size != entry.size or digest_of(fd, entry.size) != entry.content:
            raise _damaged(path, entry)
        self._checked.add((entry.file, entry.content))

    def small(self, path: str, entry: Entry) -> bytes:
        """The content of a small file. Raises CheckpointError."""
        if entry.size == 0:
            return b""
        fd = self._file(path, entry)
        data = os.pread(fd, entry.size, entry.offset)
        if len(data) != entry.size or digest_of_bytes(data) != entry.content:
            raise _damaged(path, entry)
        return data

    def write(self, path: str, entry: Entry, target: int) -> None:
        """Write a content into an empty file. Raises CheckpointError, OSError."""
        if entry.size < LARGE_BYTES:
            write_at(target, self.small(path, entry), 0)
            return
        self.check(path, entry)
        copy_large(self._file(path, entry), target, entry.size)

    def text(self, path: str, entry: Entry, limit: int) -> bytes | None:
        """The content where it is at most `limit` bytes long, else None. Raises CheckpointError."""
        if entry.size > limit:
            return None
        if entry.size < LARGE_BYTES:
            return self.small(path, entry)
        self.check(path, entry)
        return read_all(self._file(path, entry), entry.size)

    def _file(self, path: str, entry: Entry) -> int:
        if not entry.file:
            raise CheckpointError(
                f"the content of {shown(path)} was not kept",
                hint="only what was there when the checkpoint was taken can be brought back",
            )
        fd = self._open.get(entry.file)
        if fd is None:
            try:
                fd = os.open(entry.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._store)
            except OSError as error:
                raise CheckpointError(
                    f"the content of {shown(path)} cannot be read from the checkpoint: {error.strerror}",
                    hint=f"{entry.file} below .agentbox/checkpoints is missing or not yours",
                ) from error
            if len(self._open) >= 64:
                os.close(self._open.pop(next(iter(self._open))))
            self._open[entry.file] = fd
        return fd


def _damaged(path: str, entry: Entry) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint is damaged: the content of {shown(path)} is not what was kept",
        hint=f"{entry.file} below .agentbox/checkpoints was changed; nothing was restored from it",
        path=path,
    )


def is_full(error: OSError) -> bool:
    """Whether there is no more room."""
    return error.errno in FULL
