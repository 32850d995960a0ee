# SPDX-License-Identifier: MIT
"""Requests about sandboxes, passed on to the keeper as bytes: nothing is held of a body or an answer but what is on its
way, and a client that goes away takes its connection to the keeper with it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Callable

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from agentbox.config import Settings
from agentbox.server.body_rest import TAKE_REST, BodyRest, StalledError, pass_on
from agentbox.server.problems import Problem
from agentbox.server.sandboxes.connection import Headers, KeeperConnection, KeeperLostError
from agentbox.server.sandboxes.keeper_socket import OWNER_HEADER
from agentbox.server.sandboxes.keeper_start import Keeper
from agentbox.server.supervised import DISCONNECT, ClientGoneError, Occasion, supervised

PREFIX = "/v1/sandboxes"
# A body up to this size is read whole, and leaves with its head in one write.
SMALL_BYTES = 64 << 10
# The rest of one that is larger than this is not even read.
LARGE_BYTES = 4 << 20
# A client that sends nothing of its body for so long has stopped.
STALL_SECONDS = 60.0
# A keeper that was killed takes connections until its last thread is gone.
_READ_ATTEMPTS = 20
_PAUSE_SECONDS = 0.05
_PASSED_ON = frozenset({b"accept", b"content-type", b"content-encoding", b"last-event-id"})
_NOT_PASSED_BACK = frozenset(
    {
        b"connection",
        b"date",
        b"keep-alive",
        b"server",
        b"transfer-encoding",
        b"x-content-type-options",
        b"x-request-id",
    }
)


class SandboxProxy:
    """The endpoint of everything below PREFIX."""

    def __init__(self, settings: Settings, stopping: Occasion) -> None:
        self._settings = settings
        self._stopping = stopping
        self.keeper = Keeper(settings)

    async def __call__(self, request: Request) -> ASGIApp:
        """The answer to one request."""
        if request.method == "HEAD":
            raise Problem(405, "Method Not Allowed", "method_not_allowed", "use GET", {"Allow": "GET"})
        return self._forward

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone: Occasion = scope["state"][DISCONNECT]
        await supervised(self._exchange(scope, receive, send), gone, self._stopping)

    async def _exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        take_rest = scope["state"].get(TAKE_REST)
        body = _Body(headers, receive, take_rest, self._settings.request_read_timeout_seconds)
        first = await body.small()
        # What only reads may be asked again, of the next keeper.
        attempts = _READ_ATTEMPTS if scope["method"] == "GET" and body.ended else 1
        for attempt in range(1, attempts + 1):
            try:
                await self._attempt(_head(scope, body) + first, body, send)
            except _UnansweredError:
                if attempt == attempts:
                    raise _lost() from None
                await asyncio.sleep(_PAUSE_SECONDS)
            except KeeperLostError:
                raise _lost() from None
            else:
                return

    async def _attempt(self, head: bytes, body: _Body, send: Send) -> None:
        connection = await self.keeper.connect()
        sender: asyncio.Task[None] | None = None
        try:
            try:
                connection.send(head)
            except KeeperLostError:
                raise _UnansweredError from None
            if not body.ended:
                sender = asyncio.create_task(body.send_to(connection))
                sender.add_done_callback(functools.partial(_abort_after_fault, connection))
            await self._answer(connection, send)
        except KeeperLostError:
            reason = sender.exception() if sender is not None and sender.done() and not sender.cancelled() else None
            if reason is not None and not isinstance(reason, KeeperLostError):
                raise reason from None
            raise
        finally:
            if sender is not None and not sender.done():
                sender.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await sender
            if sender is None or body.ended:
                self.keeper.give_back(connection)
            else:
                connection.abort()

    async def _answer(self, connection: KeeperConnection, send: Send) -> None:
        try:
            status, found = await connection.head()
        except KeeperLostError:
            raise _UnansweredError from None
        headers: Headers = [(name, value) for name, value in found if name not in _NOT_PASSED_BACK]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        more = True
        while more:
            piece, more = await connection.piece()
            await send({"type": "http.response.body", "body": piece, "more_body": more})


class _UnansweredError(KeeperLostError):
    """Nothing of an answer came."""


def _lost() -> Problem:
    return Problem(
        503,
        "The keeper of sandboxes ended while it answered",
        "keeper_lost",
        "look what is there before you try again: it may have done what was asked",
    )


def _abort_after_fault(connection: KeeperConnection, sender: asyncio.Task[None]) -> None:
    # So that whoever waits for the answer hears of it.
    if not sender.cancelled() and sender.exception() is not None:
        connection.abort()


class _Body:
    """What a client sends: how long it says that it is, and its pieces."""

    def __init__(
        self,
        headers: dict[bytes, bytes],
        receive: Receive,
        take_rest: Callable[[], BodyRest | None] | None,
        read_seconds: float,
    ) -> None:
        length = headers.get(b"content-length")
        self.length = int(length) if length is not None else None
        self.chunked = length is None and b"transfer-encoding" in headers
        self.ended = not self.length and not self.chunked
        self._receive = receive
        self._take_rest = take_rest
        self._read_seconds = read_seconds

    async def small(self) -> bytes:
        """The whole body if it is small, else nothing yet. Raises Problem (408), ClientGoneError."""
        if self.ended or self.length is None or self.length > SMALL_BYTES:
            return b""
        parts = []
        try:
            async with asyncio.timeout(self._read_seconds):
                while not self.ended:
                    parts.append(await self._next())
        except TimeoutError:
            raise _too_slow(self._read_seconds) from None
        return b"".join(parts)

    async def send_to(self, connection: KeeperConnection) -> None:
        """Pass everything on. Raises Problem (408), ClientGoneError, KeeperLostError."""
        while not self.ended:
            try:
                async with asyncio.timeout(STALL_SECONDS):
                    piece = await self._next()
            except TimeoutError:
                raise _too_slow(STALL_SECONDS) from None
            if piece:
                connection.send(b"%x\r\n%b\r\n" % (len(piece), piece) if self.chunked else piece)
            if self.ended and self.chunked:
                connection.send(b"0\r\n\r\n")
            await connection.drain()
            if not self.ended and self.length is not None and self.length > LARGE_BYTES:
                await self._splice_to(connection)

    async def _splice_to(self, connection: KeeperConnection) -> None:
        """Pass on what is still to come without a look at it, where that can be done."""
        rest = self._take_rest() if self._take_rest is not None else None
        self._take_rest = None
        if rest is None:
            return
        whole = False
        try:
            connection.send(rest.buffered)
            sink = await connection.emptied()
            try:
                await pass_on(rest, sink, STALL_SECONDS, to_file=False)
            finally:
                os.close(sink)
            whole = self.ended = True
        except StalledError:
            raise _too_slow(STALL_SECONDS) from None
        except EOFError:
            raise ClientGoneError from None
        except OSError:
            raise KeeperLostError from None
        finally:
            os.close(rest.source)
            rest.ended(whole)

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        self.ended = not message.get("more_body", False)
        return bytes(message.get("body", b""))


def _head(scope: Scope, body: _Body) -> bytes:
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    lines = [
        b"%b %b HTTP/1.1" % (scope["method"].encode("ascii"), target),
        b"host: keeper",
        b"%b: %b" % (OWNER_HEADER, scope["state"]["owner"].encode("ascii")),
        b"x-request-id: " + scope["state"]["request_id"].encode("ascii"),
    ]
    lines += [b"%b: %b" % (name, value) for name, value in scope["headers"] if name in _PASSED_ON]
    if body.length is not None:
        lines.append(b"content-length: %d" % body.length)
    elif body.chunked:
        lines.append(b"transfer-encoding: chunked")
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _too_slow(seconds: float) -> Problem:
    return Problem(
        408,
        f"Nothing of the request body arrived for {seconds:g} seconds",
        "body_timeout",
        "send it faster; the operator sets the time with AGENTBOX_REQUEST_READ_TIMEOUT_SECONDS",
    )
