# SPDX-License-Identifier: MIT
"""How far something is that copies a workspace, as server-sent events where the client asks for them: `progress` with
the bytes copied so far, then `done` with what is the answer otherwise, or `error`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from agentbox.server.problems import from_error
from agentbox.server.sandboxes.reading import json_answer
from agentbox.server.stream import HEARTBEAT, HEARTBEAT_SECONDS, MEDIA_TYPE, OPENING_SECONDS, wants_stream
from agentbox.server.supervised import DISCONNECT, Occasion, supervised

# As often as somebody looks at a bar.
_STEP_SECONDS = 0.25
Told = Callable[[int], None]
Work = Callable[[Told], Awaitable[dict[str, Any]]]
# What goes on although nobody waits for it any more.
_going_on: set[asyncio.Task[Any]] = set()


async def told(request: Request, work: Work, status: int, stopping: Occasion) -> ASGIApp:
    """The answer of `work`, which is given what to call with the bytes copied so far, from any thread. Raises what it
    raises, where no event was sent before."""
    if not wants_stream(request.headers.get("accept", "")):
        return json_answer(await work(_nobody), status)
    answer = _Events(work, status, stopping)
    await answer.begin()
    return answer


def _nobody(size: int) -> None:
    del size


class _Events:
    def __init__(self, work: Work, status: int, stopping: Occasion) -> None:
        self._status = status
        self._stopping = stopping
        self._size = 0
        # It is not given up half way, whoever goes away: that would cost what was done.
        self._work: asyncio.Task[dict[str, Any]] = asyncio.ensure_future(self._done(work))
        _going_on.add(self._work)
        self._work.add_done_callback(_forget)

    async def _done(self, work: Work) -> dict[str, Any]:
        return await work(self._hear)

    def _hear(self, size: int) -> None:
        self._size = size

    async def begin(self) -> None:
        """Wait for as long as an answer may still have a status of its own. Raises what the work raised by then."""
        await asyncio.wait((self._work,), timeout=OPENING_SECONDS)
        if self._work.done():
            self._work.result()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until it is done or the client is gone."""
        del receive
        await supervised(self._tell(scope, send), scope["state"][DISCONNECT], self._stopping)

    async def _tell(self, scope: Scope, send: Send) -> None:
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        loop = asyncio.get_running_loop()
        size, quiet = -1, loop.time()
        while not self._work.done():
            frame = b""
            if self._size != size:
                size = self._size
                frame = _frame("progress", {"bytes": size})
            elif loop.time() - quiet > HEARTBEAT_SECONDS:
                frame = HEARTBEAT
            if frame:
                quiet = loop.time()
                await send({"type": "http.response.body", "body": frame, "more_body": True})
            await asyncio.wait((self._work,), timeout=_STEP_SECONDS)
        try:
            last = _frame("done", self._work.result())
        except Exception as error:
            problem = from_error(error)
            last = _frame("error", {**problem.body(scope["state"]["request_id"]), "status": problem.status})
        await send({"type": "http.response.body", "body": last, "more_body": False})


def _forget(work: asyncio.Task[Any]) -> None:
    _going_on.discard(work)
    if not work.cancelled():
        # Whoever asked may be gone.
        work.exception()


def _frame(name: str, content: dict[str, Any]) -> bytes:
    # Non-ASCII is escaped: many clients split lines at U+2028 and U+0085 too.
    return f"event: {name}\ndata: {json.dumps(content, allow_nan=False, separators=(',', ':'))}\n\n".encode("ascii")
