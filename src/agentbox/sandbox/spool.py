# SPDX-License-Identifier: MIT
"""A command's output on the host: from byte 0, bounded, read by offset.

Up to its bound everything is kept. Beyond it the first half stays and the second half follows the end; what is between
is gone, and every read says so by where it begins. Small output stays in memory; more goes to a file without a name,
which is gone with its owner.
"""

from __future__ import annotations

import contextlib
import os
import tempfile

DEFAULT_BYTES = 64 << 20
_IN_MEMORY_BYTES = 1 << 16
_PIECE_BYTES = 1 << 20


class Spool:
    """Bytes in order. `total` is how many came, whether or not they are kept. Not for several threads."""

    def __init__(self, directory: str, max_bytes: int = DEFAULT_BYTES) -> None:
        """`directory` is where the file goes if one is needed; `max_bytes` how much of it is kept at most."""
        self.total = 0
        self._directory = directory
        self._head = max(1, max_bytes // 2)
        self._ring = max(1, max_bytes - self._head)
        self._memory = bytearray()
        self._fd = -1

    def append(self, data: bytes) -> None:
        """Add bytes at the end. Raises OSError when the host's disk is full."""
        if self._fd < 0:
            if len(self._memory) + len(data) <= _IN_MEMORY_BYTES:
                self._memory += data
                self.total += len(data)
                return
            self.to_file()
        self._store(data)

    def to_file(self) -> None:
        """Have it in a file from now on. Raises OSError when the host's disk is full."""
        if self._fd < 0:
            self._fd = _unnamed_file(self._directory)
            kept, self._memory, self.total = bytes(self._memory), bytearray(), 0
            self._store(kept)

    def _store(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            place, room = self._place(self.total)
            written = os.pwrite(self._fd, view[:room], place)
            self.total += written
            view = view[written:]

    def _place(self, offset: int) -> tuple[int, int]:
        """Where in the file the byte `offset` of the output is, and how many after it are there in one piece."""
        if offset < self._head:
            return offset, self._head - offset
        within = (offset - self._head) % self._ring
        return self._head + within, self._ring - within

    @property
    def lost(self) -> tuple[int, int]:
        """Begin and end of what is not kept; equal when everything is."""
        return self._head, max(self._head, self.total - self._ring)

    def read(self, offset: int, size: int) -> tuple[int, bytes]:
        """At most `size` bytes from `offset` on, and where they really begin: later, when that part is lost."""
        if self._fd < 0:
            return offset, bytes(self._memory[offset : offset + size])
        first, last = self.lost
        if first <= offset < last:
            offset = last
        # Up to the gap only: what follows it is another piece.
        end = min(offset + size, self.total, first if offset < first < last else self.total)
        pieces = []
        at = offset
        while at < end:
            place, room = self._place(at)
            piece = os.pread(self._fd, min(room, end - at), place)
            if not piece:
                break
            pieces.append(piece)
            at += len(piece)
        return offset, b"".join(pieces)

    def all(self) -> bytes:
        """Everything that is kept."""
        pieces, at = [], 0
        while at < self.total:
            at, piece = self.read(at, _PIECE_BYTES)
            if not piece:
                break
            pieces.append(piece)
            at += len(piece)
        return b"".join(pieces)

    def small(self) -> bytes | None:
        """Everything, where it is little enough to be in memory. To be called by any thread once nothing is added."""
        return bytes(self._memory) if self._fd < 0 else None

    def __del__(self) -> None:
        # Of a command that its sandbox has forgotten, and whoever had it too.
        self.close()

    def close(self) -> None:
        """Forget everything; reads give nothing from then on. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._memory = bytearray()


def _unnamed_file(directory: str) -> int:
    if hasattr(os, "O_TMPFILE"):
        with contextlib.suppress(OSError):
            return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fd, path = tempfile.mkstemp(dir=directory)
    os.unlink(path)
    return fd
