# SPDX-License-Identifier: MIT
"""What commands wrote: pieces by offset, or events as it happens."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agentbox.server.routing import Router
from agentbox.server.sandboxes.kept_commands import KeptCommand
from agentbox.server.sandboxes.kept_spool import KeptSpool
from agentbox.server.sandboxes.kinds import MAX_SECONDS
from agentbox.server.sandboxes.reading import Desk, Query
from agentbox.server.stream import HEARTBEAT, HEARTBEAT_SECONDS, MEDIA_TYPE, open_character, wants_stream
from agentbox.server.supervised import DISCONNECT, Occasion, supervised

STREAMS = ("stdout", "stderr")
DEFAULT_LIMIT_BYTES = 1 << 20
MAX_LIMIT_BYTES = 16 << 20
_EVENT_BYTES = 64 << 10
_LAST_EVENT = re.compile(r"([0-9]{1,16})-([0-9]{1,16})\Z")


def add(router: Router, desk: Desk) -> None:
    """Add them."""

    async def output(request: Request) -> ASGIApp:
        kept = desk.sandbox(request).history.get(request.path_params["command_id"])
        wanted = _Wanted.of(Query(request))
        if wants_stream(request.headers.get("accept", "")):
            return _events(kept, wanted, request.headers.get("last-event-id", ""), desk.stopping)
        return await _piece(desk, request, kept, wanted)

    router.add("GET", "/v1/sandboxes/{sandbox_id}/commands/{command_id}/output", output)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the query says, whichever form the answer has."""

    stream: str
    offset: int
    stderr_offset: int
    limit: int
    seconds: float
    until_closed: bool

    @classmethod
    def of(cls, query: Query) -> _Wanted:
        return cls(
            query.choice("stream", STREAMS, ""),
            query.whole("offset", 0),
            query.whole("stderr_offset", 0),
            query.whole("limit", DEFAULT_LIMIT_BYTES, 1, MAX_LIMIT_BYTES),
            query.seconds("wait_seconds", 0, MAX_SECONDS) or 0,
            query.choice("until", ("exit", "closed")) == "closed",
        )


async def _piece(desk: Desk, request: Request, kept: KeptCommand, wanted: _Wanted) -> ASGIApp:
    error, offset = wanted.stream == "stderr", wanted.offset
    spool = _spool(kept, wanted.stream)
    if wanted.seconds and (spool is None or spool.total <= offset) and not kept.closed:
        await desk.supervised(request, _more(kept, offset, wanted.seconds, error=error))
    # Said first: what comes between is then not taken for the end.
    closed, running = kept.closed, kept.running
    begin, data = (offset, b"") if spool is None else await asyncio.to_thread(spool.read, offset, wanted.limit)
    return Response(
        data,
        media_type="application/octet-stream",
        headers={
            "X-Agentbox-Offset": str(begin),
            "X-Agentbox-Total": str(spool.total if spool is not None else 0),
            "X-Agentbox-Running": _word(running),
            "X-Agentbox-Closed": _word(closed),
        },
    )


async def _more(kept: KeptCommand, offset: int, seconds: float, *, error: bool) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await kept.more(offset, error=error)


def _spool(kept: KeptCommand, stream: str) -> KeptSpool | None:
    return kept.stderr if stream == "stderr" else kept.stdout


def _word(value: bool) -> str:
    return "true" if value else "false"


def _events(kept: KeptCommand, wanted: _Wanted, last: str, stopping: Occasion) -> ASGIApp:
    offsets = {"stdout": wanted.offset, "stderr": wanted.stderr_offset}
    if found := _LAST_EVENT.match(last):
        offsets = {"stdout": int(found[1]), "stderr": int(found[2])}
    elif wanted.stream:
        offsets[wanted.stream] = wanted.offset
    streams = (wanted.stream,) if wanted.stream else STREAMS
    return OutputEvents(kept, streams, offsets, stopping, until_closed=wanted.until_closed)


class OutputEvents:
    """Server-sent events: `stdout` and `stderr` from their offsets on, then `exit` with the command. What a spool lost
    is told by where the next piece begins. A client that reads slowly misses only what the spool does not keep."""

    def __init__(
        self,
        kept: KeptCommand,
        streams: tuple[str, ...],
        offsets: dict[str, int],
        stopping: Occasion,
        *,
        until_closed: bool,
    ) -> None:
        self._kept = kept
        self._spools = {name: spool for name in streams if (spool := _spool(kept, name)) is not None}
        self._offsets = offsets
        self._stopping = stopping
        self._until_closed = until_closed
        self._seq = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the command has ended or the client is gone."""
        del receive
        await supervised(self._tell(send), scope["state"][DISCONNECT], self._stopping)

    async def _tell(self, send: Send) -> None:
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while True:
            ended = self._kept.closed or (not self._until_closed and not self._kept.running)
            totals = {name: spool.total for name, spool in self._spools.items()}
            told = False
            for name, spool in self._spools.items():
                while frame := self._frame(name, spool, totals[name], final=ended):
                    told = True
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
            if ended:
                break
            if not told and not await self._news(totals):
                await send({"type": "http.response.body", "body": HEARTBEAT, "more_body": True})
        last = self._event("exit", self._kept.body())
        await send({"type": "http.response.body", "body": last, "more_body": False})

    def _frame(self, name: str, spool: KeptSpool, total: int, *, final: bool) -> bytes:
        """The next event of a stream, empty where there is none yet."""
        at = self._offsets[name]
        if at >= total:
            return b""
        begin, data = spool.read(at, min(_EVENT_BYTES, total - at))
        cut = open_character(data)
        if cut and not (final and begin + len(data) >= total):
            # The rest of the character is still to come.
            data = data[: len(data) - cut]
        if not data:
            return b""
        try:
            content: dict[str, Any] = {"text": data.decode()}
        except UnicodeDecodeError as error:
            if error.start:
                data = data[: error.start]
                content = {"text": data.decode()}
            else:
                content = {"b64": base64.b64encode(data).decode()}
        self._offsets[name] = begin + len(data)
        self._seq += 1
        return self._event(name, {"seq": self._seq, "offset": begin, **content})

    def _event(self, name: str, content: dict[str, Any]) -> bytes:
        # Non-ASCII is escaped: many clients split lines at U+2028 and U+0085 too.
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
        place = f"{self._offsets['stdout']}-{self._offsets['stderr']}"
        return f"id: {place}\nevent: {name}\ndata: {text}\n\n".encode("ascii")

    async def _news(self, totals: dict[str, int]) -> bool:
        """Wait until there is more to tell; False when it took so long that the connection needs a sign of life."""
        waits = [asyncio.ensure_future(self._kept.more(totals[name], error=name == "stderr")) for name in self._spools]
        if not self._until_closed:
            waits.append(asyncio.ensure_future(self._ended()))
        try:
            done, _ = await asyncio.wait(waits, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            return bool(done)
        finally:
            for wait in waits:
                wait.cancel()

    async def _ended(self) -> None:
        await self._kept.wait(None)
