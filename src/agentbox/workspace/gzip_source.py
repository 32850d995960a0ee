# SPDX-License-Identifier: MIT
"""A gzip stream that is read in exact pieces, with bounded memory, and checked to its end."""

from __future__ import annotations

import zlib
from typing import BinaryIO

from agentbox.workspace.tar_format import damaged

_PACKED_CHUNK = 64 << 10
# Writers fill the last record with zeros: 20 blocks by default.
_MAX_TAIL = 1 << 20


class GzipSource:
    """Exactly one gzip member from `packed`; anything after it is an error. Memory does not depend on the content."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._inflate = zlib.decompressobj(wbits=31)

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes. Raises UnsafeArchiveError when the stream is damaged or ends before."""
        pieces = []
        while size > 0:
            piece = self._some(size)
            if not piece:
                raise damaged("it ends too early")
            pieces.append(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def finish(self) -> None:
        """Check that only zeros follow, that the checksum fits and that the file ends there."""
        left = _MAX_TAIL
        while piece := self._some(min(left, _PACKED_CHUNK) or 1):
            left -= len(piece)
            if left < 0 or any(piece):
                raise damaged("there is data after its end")
        if self._inflate.unused_data or self._packed.read(1):
            raise damaged("there is data after its end")

    def _some(self, size: int) -> bytes:
        """From 1 to `size` bytes; none at the verified end of the stream."""
        while not self._inflate.eof:
            source = self._inflate.unconsumed_tail or self._packed.read(_PACKED_CHUNK)
            try:
                piece = self._inflate.decompress(source, size)
            except zlib.error as error:
                raise damaged("its compressed data is not valid") from error
            if piece:
                return piece
            if not source and not self._inflate.eof:
                raise damaged("its compressed data ends too early")
        return b""
