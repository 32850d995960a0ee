# SPDX-License-Identifier: MIT
"""Output of a guest, read from pipes in bounded memory."""

from __future__ import annotations

import os

from agentbox.light import asyncio, contextlib
from agentbox.models import CapturedStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Protocol

else:
    Protocol = object

_CHUNK_BYTES = 1 << 16
_CLOSED_SECONDS = 0.02


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


async def may_open_again(over: asyncio.Event) -> bool:
    """Of a terminal that nobody has open at this moment: wait a little; False once `over` says that nobody is alive who
    could open it. Closed before that, it would hang up on a program that has closed its streams and is about to end."""
    if over.is_set():
        return False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSED_SECONDS):
            await over.wait()
    return True


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


class Follower(Protocol):
    """Reads a pipe into a capture while a program runs."""

    def follow(self) -> None:
        """Begin to read, before the pipe can be full."""

    async def finish(self) -> None:
        """Read what is left, when nothing that could write more is alive."""

    def close(self) -> None:
        """Stop, and close the pipe. May be called twice."""


class PipeFollower:
    """Follows a non-blocking pipe, which is its own, by callbacks alone, from `follow` on: most runs say little and are
    over before. `on_bytes` is told after every chunk."""

    def __init__(self, fd: int, capture: Capture, on_bytes: Callable[[Capture], None]) -> None:
        self._fd = fd
        self._capture = capture
        self._on_bytes = on_bytes
        self._loop = asyncio.get_running_loop()
        self._following = False
        self._at_end = False

    def follow(self) -> None:
        """Read whenever there is something, until `finish`."""
        if self._fd >= 0 and not self._at_end:
            self._loop.add_reader(self._fd, self._read)
            self._following = True

    def _read(self) -> bool:
        """One chunk, so that a writer that never lets the pipe run dry has not the loop to itself."""
        try:
            chunk = os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._stop()
            self._at_end = True
            return False
        self._capture.feed(chunk)
        self._on_bytes(self._capture)
        return True

    async def finish(self) -> None:
        """See Follower."""
        # A pipe holds a bounded number of bytes, and nobody adds any.
        self._stop()
        while not self._at_end and self._read():
            pass

    def _stop(self) -> None:
        if self._following:
            self._following = False
            self._loop.remove_reader(self._fd)

    def close(self) -> None:
        """See Follower."""
        self._stop()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class SinkFollower:
    """Follows a pipe and hands every chunk to `sink`; a slow one slows the guest."""

    def __init__(
        self,
        fd: int,
        capture: Capture,
        on_bytes: Callable[[Capture], None],
        sink: Callable[[bytes], Awaitable[None]],
    ) -> None:
        async def follow() -> None:
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
                    on_bytes(capture)
                    await sink(chunk)
            finally:
                os.close(fd)

        self._task = asyncio.create_task(follow())

    def follow(self) -> None:
        """See Follower. It began already."""

    async def finish(self) -> None:
        """See Follower. Every writer must be gone."""
        await self._task

    def close(self) -> None:
        """See Follower."""
        self._task.cancel()
