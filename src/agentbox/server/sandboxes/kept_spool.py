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


class KeptSpool(Spool):
    """As Spool; every byte is in the file when `append` returns. Nothing is written before the first one."""

    def __init__(self, path: str, max_bytes: int) -> None:
        super().__init__(os.path.dirname(path), max_bytes)
        self.path = path

    @classmethod
    def found(cls, path: str) -> KeptSpool:
        """What a keeper before this one wrote; empty where there is none."""
        spool = cls(path, 2)
        with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
            head = file.read(_HEAD.size)
            if len(head) == _HEAD.size and head.startswith(_MARK):
                _, spool._head, spool._ring, spool.total = _HEAD.unpack(head)
        return spool

    def append(self, data: bytes) -> None:
        """Add bytes at the end. Raises OSError when the host's disk is full."""
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
        """Let the file be, until it is read or written again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        """Remove the file. Does not raise."""
        self.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        self.total = 0

    @property
    def kept_bytes(self) -> int:
        """How many bytes of it lie on the disk."""
        return min(self.total, self._head + self._ring)
