# SPDX-License-Identifier: MIT
"""The streams of an attached container: one socket, on which its stdout and stderr come as frames."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping

STDOUT, STDERR = 1, 2
_HEADER_BYTES = 8
_CHUNK_BYTES = 1 << 16


class Frames:
    """Takes bytes as they come, gives (stream, bytes) of the frames in them; a frame may be given in parts."""

    def __init__(self) -> None:
        self._header = b""
        self._stream = 0
        self._left = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """What of each stream is in the next bytes."""
        out = []
        at = 0
        while at < len(data):
            if not self._left:
                taken = data[at : at + _HEADER_BYTES - len(self._header)]
                self._header += taken
                at += len(taken)
                if len(self._header) == _HEADER_BYTES:
                    self._stream, self._left = self._header[0], int.from_bytes(self._header[4:], "big")
                    self._header = b""
                continue
            part = data[at : at + self._left]
            self._left -= len(part)
            at += len(part)
            out.append((self._stream, part))
        return out


async def ready(fd: int, *, writing: bool) -> None:
    """Wait until a descriptor can be read, or written."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiting.done():
            waiting.set_result(None)

    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    add(fd, wake)
    try:
        await waiting
    finally:
        remove(fd)


async def write_all(fd: int, data: bytes) -> None:
    """Write to a non-blocking descriptor. Raises OSError."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            await ready(fd, writing=True)


async def pump_output(sock: socket.socket, into: Mapping[int, int]) -> None:
    """Copy frames into the descriptors of their streams, non-blocking ones, until the container has ended. One that
    nobody reads any more is skipped from then on."""
    loop = asyncio.get_running_loop()
    frames, deaf = Frames(), set[int]()
    while True:
        try:
            data = await loop.sock_recv(sock, _CHUNK_BYTES)
        except OSError:
            return
        if not data:
            return
        for stream, part in frames.feed(data):
            fd = into.get(stream)
            if fd is None or stream in deaf:
                continue
            try:
                await write_all(fd, part)
            except OSError:
                deaf.add(stream)


async def pump_input(fd: int, sock: socket.socket) -> None:
    """Copy a descriptor to the container's stdin until it ends, and end that. Regular files are read at once, others
    in a thread; a container that is gone ends it too."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while data := await asyncio.to_thread(os.read, fd, _CHUNK_BYTES):
            await loop.sock_sendall(sock, data)
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
