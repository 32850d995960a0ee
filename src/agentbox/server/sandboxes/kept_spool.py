# SPDX-License-Identifier: MIT
"""A command's output in a file that has a name, so that the next keeper finds and can read it."""

from __future__ import annotations

import contextlib
import os
import struct

from agentbox.sandbox.spool import Spool

# What the file is, how much of the beginning and of the end it keeps, and how many bytes came in all.
_HEAD = struct.Struct("<8sQQQ")
_MARK = b"abxspool"
_TOTAL_AT = 24
_TOTAL = struct.Struct("<Q")


# Of a command that has just begun so much may wait for its file.
_HELD_BYTES = 1 << 16


class KeptSpool(Spool):
    """As Spool. What comes first is held until `keep`, or until it is read or is much: a small command has its answer
    before there is a file. From then on every byte is in the file when `append` returns."""

    def __init__(self, path: str, max_bytes: int) -> None:
        super().__init__(os.path.dirname(path), max_bytes)
        self.path = path
        self._held: bytearray | None = bytearray()

    @classmethod
    def found(cls, path: str) -> KeptSpool:
        """What a keeper before this one wrote; empty where there is none."""
        spool = cls(path, 2)
        spool._held = None
        with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
            head = file.read(_HEAD.size)
            if len(head) == _HEAD.size and head.startswith(_MARK):
                _, spool._head, spool._ring, spool.total = _HEAD.unpack(head)
        return spool

    def append(self, data: bytes) -> None:
        """Add bytes at the end. Raises OSError when the host's disk is full."""
        if self._held is not None:
            if len(self._held) + len(data) <= _HELD_BYTES:
                self._held += data
                self.total += len(data)
                return
            self.keep()
        self._add(data)

    def keep(self) -> None:
        """Have everything in the file, now and from now on. Raises OSError when the host's disk is full: it is held
        all the same then."""
        held = self._held
        if not held:
            self._held = None
            return
        self._held, self.total = None, 0
        try:
            self._add(bytes(held))
        except OSError:
            self._held, self.total = held, len(held)
            raise

    @property
    def held(self) -> bytes | None:
        """Everything, where none of it is in the file yet."""
        return None if self._held is None else bytes(self._held)

    def _add(self, data: bytes) -> None:
        if self._fd < 0:
            self._open()
        self._store(data)
        os.pwrite(self._fd, _TOTAL.pack(self.total), _TOTAL_AT)

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if not self.total:
            os.pwrite(self._fd, _HEAD.pack(_MARK, self._head, self._ring, 0), 0)

    def _place(self, offset: int) -> tuple[int, int]:
        place, room = super()._place(offset)
        return place + _HEAD.size, room

    def read(self, offset: int, size: int) -> tuple[int, bytes]:
        """See Spool."""
        with contextlib.suppress(OSError):
            self.keep()
        if self._held is not None:
            return offset, bytes(self._held[offset : offset + size])
        if not self.total:
            return offset, b""
        if self._fd >= 0:
            return super().read(offset, size)
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return offset, b""
        try:
            return super().read(offset, size)
        finally:
            self.close()

    def close(self) -> None:
        """Let the file be, until it is read or written again. Does not raise."""
        with contextlib.suppress(OSError):
            self.keep()
        self._let_be()

    def __del__(self) -> None:
        # Whoever wanted it kept has said so.
        self._let_be()

    def _let_be(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        """Remove the file. Does not raise."""
        self._held = None
        self._let_be()
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        self.total = 0

    @property
    def kept_bytes(self) -> int:
        """How many bytes of it lie on the disk."""
        return min(self.total, self._head + self._ring)
