# SPDX-License-Identifier: MIT
"""Traces of runs as the API hands them out: the bytes that were written, piece by piece."""

from __future__ import annotations

import asyncio
import os
from typing import BinaryIO, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

MEDIA_TYPE = "application/jsonl"
PIECE_BYTES = 256 << 10


class TraceCatalogue(Protocol):
    """What the API does with the traces of runs."""

    def read(self, owner: str, run_id: str) -> BinaryIO:
        """The trace of a run that has ended. Raises NotFoundError when the owner has no such run."""

    def public_pem(self) -> str:
        """The key that verifies traces, as PEM text."""


class TraceStream(Response):
    """The answer that is an open file: as long as it is now, in pieces, and closed at the end."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(media_type=MEDIA_TYPE)
        self._file = file
        self._left = os.fstat(file.fileno()).st_size
        self.headers["content-length"] = str(self._left)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file."""
        del scope, receive
        with self._file as file:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while self._left:
                piece = await asyncio.to_thread(file.read, min(PIECE_BYTES, self._left))
                if not piece:
                    raise EOFError("a trace became shorter while it was sent")
                self._left -= len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
