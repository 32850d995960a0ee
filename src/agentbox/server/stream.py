# SPDX-License-Identifier: MIT
"""Server-sent events of one run: `queued` when it has to wait, `stdout` and `stderr` as they happen, then `result` or
`error`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentbox.models import RunResult
from agentbox.server.problems import from_error
from agentbox.server.schemas import result_body
from agentbox.server.supervised import DISCONNECT, ClientGoneError, Occasion, supervised

if TYPE_CHECKING:
    from agentbox.engine.admission import OnQueued
    from agentbox.engine.supervisor import OutputSink

MEDIA_TYPE = "text/event-stream"
HEARTBEAT_SECONDS = 15.0
# A request that cannot be served fails within this time, and is then answered with its own status.
OPENING_SECONDS = 1.0
HEARTBEAT = b": heartbeat\n\n"
_log = logging.getLogger("agentbox.server")


class Utf8Pieces:
    """Splits one stream's bytes into text and what is not UTF-8; a character cut between chunks is held back."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes, *, final: bool = False) -> list[str | bytes]:
        """Text and bytes in their order. After `final` nothing is held back."""
        data = self._held + chunk
        end = len(data) if final else len(data) - open_character(data)
        self._held = data[end:]
        data = data[:end]
        pieces: list[str | bytes] = []
        try:
            text, rest = data.decode("utf-8"), b""
        except UnicodeDecodeError as error:
            text, rest = data[: error.start].decode("utf-8"), data[error.start :]
        if text:
            pieces.append(text)
        if rest:
            pieces.append(rest)
        return pieces


def open_character(data: bytes) -> int:
    """How many bytes at the end begin a character that is not complete."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC2:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4 if byte < 0xF5 else 1
            return back if back < need else 0
        if byte < 0x80:
            return 0
    return 0


class EventStream(Response):
    """The answer to one streamed run.

    `start_run` gets the sinks of output and of waiting, and gives the run. At most `max_stream_bytes` of each of stdout
    and stderr are sent; the result has the counts, and head and tail. A client that reads slowly slows the program
    down. `closing` is closed at the end.
    """

    def __init__(
        self,
        start_run: Callable[[OutputSink, OnQueued], Coroutine[Any, Any, RunResult]],
        stopping: Occasion,
        max_stream_bytes: int,
        closing: AbstractContextManager[object],
    ) -> None:
        super().__init__()
        self._start_run = start_run
        self._stopping = stopping
        self._closing = closing
        self._left = {"stdout": max_stream_bytes, "stderr": max_stream_bytes}
        self._pieces = {"stdout": Utf8Pieces(), "stderr": Utf8Pieces()}
        self._seq = 0
        self._opened = False
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the run has ended or the client is gone."""
        del receive
        self._send = send
        request_id = scope["state"]["request_id"]
        with self._closing:
            beat = asyncio.create_task(self._beat())
            try:
                result = await supervised(
                    self._start_run(self._output, self._queued), scope["state"][DISCONNECT], self._stopping
                )
                for stream in self._pieces:
                    await self._pass(stream, b"", final=True)
                await self._event("result", result_body(result))
            except ClientGoneError:
                raise
            except Exception as error:
                problem = from_error(error, on_run=True)
                if problem.status >= 500 and problem is not error:
                    _log.exception("run failed request_id=%s", request_id)
                if not self._opened:
                    raise problem from error
                await self._event("error", {**problem.body(request_id), "status": problem.status})
            finally:
                beat.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await beat
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _queued(self, waiting: int) -> None:
        await self._event("queued", {"waiting": waiting})

    async def _output(self, stream: str, chunk: bytes) -> None:
        kept = chunk[: self._left[stream]]
        self._left[stream] -= len(kept)
        if kept:
            await self._pass(stream, kept)

    async def _pass(self, stream: str, chunk: bytes, *, final: bool = False) -> None:
        for piece in self._pieces[stream].feed(chunk, final=final):
            shown = {"text": piece} if isinstance(piece, str) else {"b64": base64.b64encode(piece).decode()}
            async with self._lock:
                self._seq += 1
                await self._write(_frame(stream, {"seq": self._seq, **shown}))

    async def _event(self, name: str, data: dict[str, Any]) -> None:
        async with self._lock:
            await self._write(_frame(name, data))

    async def _beat(self) -> None:
        await asyncio.sleep(OPENING_SECONDS)
        while True:
            async with self._lock:
                await self._write(HEARTBEAT)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _write(self, data: bytes) -> None:
        if not self._opened:
            self._opened = True
            headers = [(b"content-type", MEDIA_TYPE.encode()), (b"cache-control", b"no-store")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})


def _frame(name: str, data: dict[str, Any]) -> bytes:
    # Non-ASCII is escaped: many clients split lines at U+2028 and U+0085 too.
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return f"event: {name}\ndata: {text}\n\n".encode("ascii")


def wants_stream(accept: str) -> bool:
    """Whether an Accept header asks for events."""
    return any(part.partition(";")[0].strip().lower() == MEDIA_TYPE for part in accept.split(","))
