# SPDX-License-Identifier: MIT
"""One HTTP/1.1 connection to the keeper: a request at a time, bytes in both directions, memory that does not grow."""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections import deque

import httptools

Headers = list[tuple[bytes, bytes]]

# So much of an answer waits here for a client that is slow, and so much of a body for the keeper.
WAITING_BYTES = 256 << 10
_SEND_BYTES = 1 << 20


class KeeperLostError(Exception):
    """The connection broke before the answer was complete."""


class KeeperConnection(asyncio.Protocol):
    """`send` and `drain` a request, then take its answer: `head`, and `piece` until there is no more."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._status = 0
        self._pieces: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._head_known = False
        self._complete = False
        self._stays = False
        self._lost = False
        self._reading = True
        self._changed: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._write_paused = False

    # ---- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=WAITING_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            # What the kernel does not take at once is copied and waits here.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits."""
        del exc
        self._lost = True
        self._wake()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Part of an answer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()
        self._wake()

    def pause_writing(self) -> None:
        """The keeper reads more slowly than it is written to."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """It has caught up."""
        self._write_paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    # ---- the parser's side

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is known, unless it only says that the body may come."""
        self._status = self._parser.get_status_code()
        self._head_known = self._status >= 200

    def on_body(self, body: bytes) -> None:
        """Part of the body."""
        self._pieces.append(body)
        self._waiting_bytes += len(body)
        if self._reading and self._waiting_bytes > WAITING_BYTES and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """The answer is complete."""
        if self._head_known:
            self._complete = True
            # The parser knows it now, and not later.
            self._stays = self._parser.should_keep_alive()
        else:
            self._headers = []

    # ---- for who asks

    @property
    def idle(self) -> bool:
        """Whether another request may be sent."""
        return self._transport is not None and not self._lost and not self._transport.is_closing()

    @property
    def silent(self) -> bool:
        """Whether nothing came on it since the answer before: not even its end, of which the loop tells later."""
        if not self.idle or self._transport is None:
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    def begin(self) -> None:
        """Forget the answer before, of which nothing is left."""
        self._headers, self._status = [], 0
        self._head_known = self._complete = False

    @property
    def done(self) -> bool:
        """Whether the answer was taken whole, so that the connection can be used again."""
        return self._complete and not self._pieces and self._stays and self.idle

    def send(self, data: bytes) -> None:
        """Write part of a request."""
        if self._transport is None or self._lost:
            raise KeeperLostError
        self._transport.write(data)

    async def drain(self) -> None:
        """Wait until more may be sent. Raises KeeperLostError."""
        if self._write_paused and not self._lost:
            self._writable = asyncio.get_running_loop().create_future()
            await self._writable
        if self._lost:
            raise KeeperLostError

    async def emptied(self) -> int:
        """A descriptor of the connection, when everything sent before is with the kernel; whoever asked writes to it,
        and closes it. Raises KeeperLostError."""
        if self._transport is None:
            raise KeeperLostError
        self._transport.set_write_buffer_limits(high=0)
        await self.drain()
        if self._transport.is_closing():
            raise KeeperLostError
        return os.dup(self._transport.get_extra_info("socket").fileno())

    async def head(self) -> tuple[int, Headers]:
        """Status and headers. Raises KeeperLostError."""
        while not self._head_known:
            if self._lost:
                raise KeeperLostError
            await self._change()
        return self._status, self._headers

    async def piece(self) -> tuple[bytes, bool]:
        """The next part of the body, and whether there is more. Raises KeeperLostError."""
        while not self._pieces and not self._complete:
            if self._lost:
                raise KeeperLostError
            await self._change()
        joined = b"".join(self._pieces) if len(self._pieces) != 1 else self._pieces[0]
        self._pieces.clear()
        self._waiting_bytes = 0
        if not self._reading and self.idle and self._transport is not None:
            self._reading = True
            self._transport.resume_reading()
        return joined, not self._complete

    async def _change(self) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        await self._changed

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def abort(self) -> None:
        """Close at once. May be called twice."""
        if self._transport is not None:
            self._transport.abort()
