# SPDX-License-Identifier: MIT
"""A gzip stream that is read in exact pieces, with bounded memory, and checked to its end."""

from __future__ import annotations

import zlib
from typing import BinaryIO

from agentbox.workspace.tar_format import damaged

_PACKED_CHUNK = 64 << 10
_READY_CHUNK = 256 << 10
# Writers fill the last record with zeros: 20 blocks by default.
_MAX_TAIL = 1 << 20


class GzipSource:
    """Exactly one gzip member from `packed`; anything after it is an error. Memory does not depend on the content."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._inflate = zlib.decompressobj(wbits=31)
        self._ready = b""
        self._at = 0

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes. Raises UnsafeArchiveError when the stream is damaged or ends before."""
        piece = self._ready[self._at : self._at + size]
        self._at += len(piece)
        if len(piece) == size:
            return piece
        pieces = [piece]
        size -= len(piece)
        while size > 0:
            if not self._inflate_more():
                raise damaged("it ends too early")
            piece = self._ready[:size]
            self._at = len(piece)
            size -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)

    def finish(self) -> None:
        """Check that only zeros follow, that the checksum fits and that the file ends there."""
        left = _MAX_TAIL
        tail = self._ready[self._at :]
        while True:
            left -= len(tail)
            if left < 0 or tail.count(0) != len(tail):
                raise damaged("there is data after its end")
            if not self._inflate_more():
                break
            tail = self._ready
        if self._inflate.unused_data or self._packed.read(1):
            raise damaged("there is data after its end")

    def _inflate_more(self) -> bool:
        """Make the next bytes ready; False at the verified end of the stream."""
        while not self._inflate.eof:
            source = self._inflate.unconsumed_tail or self._packed.read(_PACKED_CHUNK)
            try:
                self._ready = self._inflate.decompress(source, _READY_CHUNK)
            except zlib.error as error:
                raise damaged("its compressed data is not valid") from error
            if self._ready:
                self._at = 0
                return True
            if not source and not self._inflate.eof:
                raise damaged("its compressed data ends too early")
        return False
