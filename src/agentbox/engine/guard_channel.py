# SPDX-License-Identifier: MIT
"""The host's end of a box's channel: takes the guards' connections, and reads each until its process has closed it."""

from __future__ import annotations

import os
import struct
import time

from agentbox.light import asyncio, contextlib, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Conversation(Protocol):
        """What is said on one connection."""

        async def take(self, data: bytes) -> bytes | None:
            """What came; gives the answers, and None when the connection is worth nothing any more."""

        def over(self) -> None:
            """The connection is closed."""


_READ_BYTES = 1 << 16
_SO_PEERCRED = 17
_MAX_CONNECTIONS = 1024
# A guest that sends one frame after the other and waits for none is read in larger pieces: a wake-up for each would
# cost more than the frame. What has been sent is in the host's hands all the same.
_STREAM_READS = 8
_STREAM_SECONDS = 0.002
_PAUSE_SECONDS = 0.001
# After the box is dead, what its guards had written is still in the sockets; this bounds a wait that should be none.
_DRAIN_SECONDS = 5


class GuardChannel:
    """The connections of one box's guards. `opened` begins a conversation with the process of that number (its peer's
    by the kernel, 0 where no name space shows it); the second number is the connection's own."""

    def __init__(self, opened: Callable[[int, int], Conversation]) -> None:
        self._opened = opened
        self._connections: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        # A descriptor of our own: the box may close its listener before this is told.
        self._bell = -1
        self._next_holder = 0

    def listen(self, listener: socket.socket) -> None:
        """Serve the guards that connect."""
        listener.setblocking(False)
        self._listener = listener
        self._bell = os.dup(listener.fileno())
        asyncio.get_running_loop().add_reader(self._bell, self._accept)

    def is_idle(self) -> bool:
        """Whether there is no guard's connection, and none waits to be taken."""
        while self._accept():
            pass
        return not self._connections

    def stop(self) -> None:
        """See `finish`; while it is idle."""
        self._listener = None
        if self._bell >= 0:
            asyncio.get_running_loop().remove_reader(self._bell)
            os.close(self._bell)
            self._bell = -1

    async def finish(self) -> None:
        """Read what is still in the sockets, when nothing in the box is alive."""
        idle = self.is_idle()
        self.stop()
        if idle:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                await asyncio.gather(*self._connections, return_exceptions=True)
        for connection in self._connections:
            connection.cancel()

    def _accept(self) -> bool:
        """Take a connection that waits; whether there was one."""
        if self._listener is None:
            return False
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return False
        except OSError:
            self.stop()
            return False
        if len(self._connections) >= _MAX_CONNECTIONS:
            # A guard that cannot record refuses its effect.
            connection.close()
            return True
        serving = asyncio.create_task(self._serve(connection))
        self._connections.add(serving)
        serving.add_done_callback(self._connections.discard)
        return True

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, _SO_PEERCRED, 12))
        self._next_holder += 1
        conversation = self._opened(pid, self._next_holder)
        try:
            with connection, contextlib.suppress(OSError):
                stream = 0
                read_at = 0.0
                while data := await loop.sock_recv(connection, _READ_BYTES):
                    waited = time.monotonic() - read_at
                    answers = await conversation.take(data)
                    if answers is None:
                        return
                    if answers:
                        await loop.sock_sendall(connection, answers)
                    stream = 0 if answers or waited > _STREAM_SECONDS else stream + 1
                    if stream >= _STREAM_READS and len(data) < _READ_BYTES:
                        await asyncio.sleep(_PAUSE_SECONDS)
                    # How long the pause took says nothing of the guest.
                    read_at = time.monotonic()
        finally:
            conversation.over()
