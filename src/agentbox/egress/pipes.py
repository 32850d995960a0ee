# SPDX-License-Identifier: MIT
"""What the connections of an event loop share for moving bytes: one buffer, and pipes to splice through."""

from __future__ import annotations

import asyncio
import contextlib
import os

READ_BYTES = 16 * 1024
PIPE_BYTES = 512 * 1024
MAX_PIPES = 32
_SET_PIPE_SIZE = 1031


class Pipes:
    """Pipes that are lent, to one direction at a time. When all are lent, data goes through a buffer."""

    def __init__(self, limit: int = MAX_PIPES) -> None:
        self._free: list[tuple[int, int]] = []
        self._left = limit

    def take(self) -> tuple[int, int] | None:
        """An empty pipe: its read end and its write end."""
        if self._free:
            return self._free.pop()
        if not self._left or not hasattr(os, "splice"):
            return None
        import fcntl

        try:
            ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        # An ordinary user has an allowance for pipes; without it they stay as they are.
        with contextlib.suppress(OSError):
            fcntl.fcntl(ends[1], _SET_PIPE_SIZE, PIPE_BYTES)
        self._left -= 1
        return ends

    def give_back(self, ends: tuple[int, int], *, empty: bool) -> None:
        """A pipe that still holds bytes is closed: they belong to one connection."""
        if empty:
            self._free.append(ends)
            return
        self._left += 1
        for end in ends:
            os.close(end)

    def close(self) -> None:
        """Close those that are not lent."""
        while self._free:
            self.give_back(self._free.pop(), empty=False)


class Room:
    """What all connections of one event loop share."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pipes: Pipes) -> None:
        self.loop = loop
        self.pipes = pipes
        self.buffer = memoryview(bytearray(READ_BYTES))
