# SPDX-License-Identifier: MIT
"""Messages between an owner and its launcher or its boxes, on the event loop."""

from __future__ import annotations

import os

from agentbox.isolation.launcher import wire
from agentbox.light import asyncio, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Channel:
    """Messages with descriptors over a UNIX socket, without blocking the event loop."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._receiver = wire.Receiver(sock)
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[tuple[dict[str, Any], list[int]] | None] = asyncio.Queue()
        self._sending = asyncio.Lock()
        self._loop.add_reader(sock.fileno(), self._readable)
        self.closed = False

    def _readable(self) -> None:
        if self.closed:
            # In the same round of the loop, before this was called.
            return
        try:
            more = self._receiver.fill()
            while (taken := self._receiver.take()) is not None:
                self._inbox.put_nowait(taken)
        except BlockingIOError:
            return
        except OSError:
            more = False
        if not more:
            self._loop.remove_reader(self._sock.fileno())
            self._inbox.put_nowait(None)

    async def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """The next message; None when the peer is gone."""
        taken = await self._inbox.get()
        if taken is None:
            self._inbox.put_nowait(None)
        return taken

    async def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Write one message. Raises OSError when the peer is gone."""
        frame = wire.encode(message, len(descriptors))
        async with self._sending:
            sent = 0
            while sent == 0:
                try:
                    sent = socket.send_fds(self._sock, [frame], list(descriptors))
                except BlockingIOError:
                    await self._writable()
            if sent < len(frame):
                await self._loop.sock_sendall(self._sock, memoryview(frame)[sent:])

    async def _writable(self) -> None:
        ready = asyncio.Event()
        self._loop.add_writer(self._sock.fileno(), ready.set)
        try:
            await ready.wait()
        finally:
            self._loop.remove_writer(self._sock.fileno())

    def close(self) -> None:
        """Close the socket and every descriptor that nobody took."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._receiver.close()
        while not self._inbox.empty():
            taken = self._inbox.get_nowait()
            for fd in taken[1] if taken else ():
                os.close(fd)
        self._inbox.put_nowait(None)
        self._sock.close()
