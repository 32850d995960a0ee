# SPDX-License-Identifier: MIT
"""The name server of a box, served on the host from sockets that were made inside; `zone` says what it answers.

Bounded, whatever a guest does: datagrams wait in the kernel's buffer when many came at once, connections are few and
must say something in time, and the questions that wait for the upstream are counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from agentbox.egress import dns
from agentbox.egress.events import OnEvent, Repeats
from agentbox.egress.names import SyntheticNames
from agentbox.egress.rules import EgressRules
from agentbox.egress.upstream import Found, Upstream
from agentbox.egress.zone import Wanted, Zone

_TROUBLE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of the host one box's questions may take.

    After `at_once` datagrams, or messages of one connection, there is a pause of `pause_seconds` for others. `waiting`
    questions may wait for the upstream, each for `waiting_seconds`; `asking` of them are asked at a time. A connection
    has `message_seconds` for each message and each answer, and ends after `connection_seconds`; the kernel keeps
    `buffer_bytes` for it in either direction.
    """

    at_once: int = 32
    pause_seconds: float = 0.02
    waiting: int = 64
    waiting_seconds: float = 5.0
    asking: int = 8
    connections: int = 16
    message_seconds: float = 10.0
    connection_seconds: float = 120.0
    buffer_bytes: int = 32_768


class Resolver:
    """The name server of one box. The sockets stay the caller's, who closes them after `close`."""

    def __init__(
        self,
        rules: Callable[[], EgressRules],
        names: SyntheticNames,
        upstream: Upstream,
        on_event: OnEvent,
        limits: Limits | None = None,
    ) -> None:
        """`rules` gives the rules that hold now; it is asked for every question."""
        self._rules = rules
        self._upstream = upstream
        self._events = Repeats(on_event)
        self._zone = Zone(names, self._events)
        self._limits = limits or Limits()
        self._asking = asyncio.Semaphore(self._limits.asking)
        self._waiting = 0
        self._connections = 0
        self._readers: dict[socket.socket, Callable[[socket.socket], None]] = {}
        self._at_work: set[asyncio.Task[None]] = set()

    def serve_udp(self, sock: socket.socket) -> None:
        """Answer datagrams that come to a bound socket; to be called in the event loop."""
        self._serve(sock, self._read_datagrams)

    def serve_tcp(self, sock: socket.socket) -> None:
        """Answer connections that come to a listening socket; to be called in the event loop."""
        for direction in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            # Connections inherit it.
            sock.setsockopt(socket.SOL_SOCKET, direction, self._limits.buffer_bytes)
        self._serve(sock, self._accept)

    async def answer(self, message: bytes, max_bytes: int | None = None) -> bytes | None:
        """The answer to one message, None where there must be none; `max_bytes` as in `Zone.answer`."""
        answer = self._answer(message, max_bytes)
        return await self._answer_late(answer) if isinstance(answer, Wanted) else answer

    async def close(self) -> None:
        """Stop answering. Events that were counted and not yet told are told."""
        for sock in self._readers:
            asyncio.get_running_loop().remove_reader(sock)
        self._readers.clear()
        at_work = list(self._at_work)
        for one in at_work:
            one.cancel()
        await asyncio.gather(*at_work, return_exceptions=True)
        self._events.flush()

    def _answer(self, message: bytes, max_bytes: int | None = None) -> bytes | Wanted | None:
        """The answer to a message if it can be given now; a question that waits has its place then."""
        answer = self._zone.answer(message, self._rules(), max_bytes)
        if not isinstance(answer, Wanted):
            return answer
        found = self._upstream.known(answer.name)
        if found is None and self._waiting >= self._limits.waiting:
            found = Found(failure="too many questions of this box wait for an answer")
        if found is not None:
            return self._zone.answer_found(answer, found)
        self._waiting += 1
        return answer

    async def _answer_late(self, wanted: Wanted) -> bytes:
        """The answer to a question that has a place among those that wait."""
        try:
            async with asyncio.timeout(self._limits.waiting_seconds), self._asking:
                found = await self._upstream.lookup(wanted.name)
        except TimeoutError:
            found = Found(failure="too many questions of this box came before it")
        finally:
            self._waiting -= 1
        return self._zone.answer_found(wanted, found)

    # Sockets

    def _serve(self, sock: socket.socket, read: Callable[[socket.socket], None]) -> None:
        sock.setblocking(False)
        self._readers[sock] = read
        asyncio.get_running_loop().add_reader(sock, read, sock)

    def _pause(self, sock: socket.socket, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(sock)
        loop.call_later(seconds, self._resume, sock)

    def _resume(self, sock: socket.socket) -> None:
        if sock in self._readers:
            asyncio.get_running_loop().add_reader(sock, self._readers[sock], sock)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        started = asyncio.get_running_loop().create_task(work)
        self._at_work.add(started)
        started.add_done_callback(self._at_work.discard)

    def _read_datagrams(self, sock: socket.socket) -> None:
        for _ in range(self._limits.at_once):
            try:
                # One byte more than a question may have, so that a longer one is seen to be.
                message, asker = sock.recvfrom(dns.MAX_QUERY_BYTES + 1)
            except BlockingIOError:
                return
            except OSError:
                self._pause(sock, _TROUBLE_SECONDS)
                return
            answer = self._answer(message)
            if isinstance(answer, Wanted):
                self._start(self._send_late(sock, answer, asker))
                continue
            _send(sock, answer, asker)
        self._pause(sock, self._limits.pause_seconds)

    async def _send_late(self, sock: socket.socket, wanted: Wanted, asker: Any) -> None:
        _send(sock, await self._answer_late(wanted), asker)

    def _accept(self, sock: socket.socket) -> None:
        while self._connections < self._limits.connections:
            try:
                connection, _ = sock.accept()
            except BlockingIOError:
                return
            except OSError:
                # The host has no descriptor left, or the connection is gone; the socket would stay readable.
                self._pause(sock, _TROUBLE_SECONDS)
                return
            self._connections += 1
            self._start(self._converse(sock, connection))
        # The rest waits in the kernel's queue until one ends.
        asyncio.get_running_loop().remove_reader(sock)

    async def _converse(self, listener: socket.socket, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError, TimeoutError):
                connection.setblocking(False)
                async with asyncio.timeout(self._limits.connection_seconds):
                    answered = 0
                    while await self._exchange(connection):
                        answered += 1
                        if not answered % self._limits.at_once:
                            await asyncio.sleep(self._limits.pause_seconds)
        finally:
            self._connections -= 1
            self._resume(listener)

    async def _exchange(self, connection: socket.socket) -> bool:
        """Answer the next message of a connection; False when there is none, or none after it could be read."""
        async with asyncio.timeout(self._limits.message_seconds):
            head = await _receive(connection, 2)
            if head is None:
                return False
            length = int.from_bytes(head, "big")
            # Of a message that is too long no more is read than shows so.
            message = await _receive(connection, min(length, dns.MAX_QUERY_BYTES + 1))
        if message is None:
            return False
        answer = await self.answer(message, dns.MAX_STREAM_BYTES)
        if answer is None:
            return False
        async with asyncio.timeout(self._limits.message_seconds):
            await asyncio.get_running_loop().sock_sendall(connection, struct.pack(">H", len(answer)) + answer)
        return length <= dns.MAX_QUERY_BYTES


def _send(sock: socket.socket, answer: bytes | None, asker: Any) -> None:
    if answer is not None:
        # Like any datagram an answer may be lost: the asker's buffer is full, or it has gone.
        with contextlib.suppress(OSError):
            sock.sendto(answer, asker)


async def _receive(connection: socket.socket, count: int) -> bytes | None:
    """So many bytes, None when the peer ends before."""
    loop = asyncio.get_running_loop()
    received = bytearray()
    while len(received) < count:
        part = await loop.sock_recv(connection, count - len(received))
        if not part:
            return None
        received += part
    return bytes(received)
