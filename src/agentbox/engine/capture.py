# SPDX-License-Identifier: MIT
"""Output of a guest, read from pipes in bounded memory."""

from __future__ import annotations

import os

from agentbox.light import asyncio
from agentbox.models import CapturedStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_CHUNK_BYTES = 1 << 16


class Capture:
    """Keeps everything up to `cap` bytes, or the first half and the last half of more."""

    def __init__(self, cap: int) -> None:
        self.total = 0
        self._head_cap = cap - cap // 2
        self._tail_cap = cap // 2
        self._head = bytearray()
        self._tail = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Add bytes at the end."""
        self.total += len(chunk)
        room = self._head_cap - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        # Trimming only at twice the size keeps the cost of a flood linear.
        if len(self._tail) > 2 * self._tail_cap + _CHUNK_BYTES:
            del self._tail[: -self._tail_cap or None]

    def result(self) -> CapturedStream:
        """What was kept."""
        tail = self._tail[max(0, len(self._tail) - self._tail_cap) :]
        return CapturedStream(bytes(self._head + tail), self.total)


async def readable(fd: int) -> None:
    """Wait until a read of `fd` would not block."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(fd, wake)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


async def drain(fd: int, capture: Capture, on_chunk: Callable[[bytes], Awaitable[None]] | None = None) -> None:
    """Read a non-blocking pipe to its end into `capture`, then close it. A slow `on_chunk` slows the guest."""
    try:
        while True:
            try:
                chunk = os.read(fd, _CHUNK_BYTES)
            except BlockingIOError:
                await readable(fd)
                continue
            if not chunk:
                return
            capture.feed(chunk)
            if on_chunk is not None:
                await on_chunk(chunk)
            else:
                # A writer that never lets the pipe run dry must not keep the loop to itself.
                await asyncio.sleep(0)
    finally:
        os.close(fd)
