# SPDX-License-Identifier: MIT
"""The kept stream to the program of an attached container."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from agentbox.isolation.backends.docker.streams import STDERR, STDOUT, Frames

_CHUNK_BYTES = 1 << 18
_KEPT_BYTES = 4096


class ContainerStream:
    """See AgentStream. `said` is the end of what the program wrote to its stderr."""

    def __init__(self, sock: socket.socket) -> None:
        self.said = b""
        self._socket = sock
        self._frames = Frames()
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._reading = False

    async def read(self) -> bytes:
        """See AgentStream."""
        while not self._closed:
            self._reading = True
            try:
                data = await self._loop.sock_recv(self._socket, _CHUNK_BYTES)
            except OSError:
                data = b""
            finally:
                self._reading = False
                if self._closed:
                    self._socket.close()
            if not data:
                break
            out = bytearray()
            for stream, part in self._frames.feed(data):
                if stream == STDOUT:
                    out += part
                elif stream == STDERR:
                    self.said = (self.said + part)[-_KEPT_BYTES:]
            if out:
                return bytes(out)
        return b""

    async def write(self, data: bytes) -> None:
        """See AgentStream."""
        if self._closed:
            raise BrokenPipeError("the stream is closed")
        await self._loop.sock_sendall(self._socket, data)

    async def close(self) -> None:
        """See AgentStream."""
        if self._closed:
            return
        self._closed = True
        # Wakes whoever reads, who then closes it.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if not self._reading:
            self._socket.close()
