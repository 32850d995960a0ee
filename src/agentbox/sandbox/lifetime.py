# SPDX-License-Identifier: MIT
"""When a sandbox ends by itself: idle for too long, or too old."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

_LONGEST_SLEEP_SECONDS = 3600.0
_BUSY_POLL_SECONDS = 1.0


class Lifetime:
    """Calls `expire` with the reason, once, when `idle_seconds` have gone by without `touch` and with `busy` false, or
    `max_seconds` since `begin`. None is no limit."""

    def __init__(
        self,
        idle_seconds: float | None,
        max_seconds: float | None,
        busy: Callable[[], bool],
        expire: Callable[[str], Awaitable[None]],
    ) -> None:
        self._idle = idle_seconds
        self._max = max_seconds
        self._busy = busy
        self._expire = expire
        self._begun = self._touched = 0.0
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Count from now."""
        self.end()
        self._begun = self._touched = time.monotonic()
        if self._idle is not None or self._max is not None:
            self._task = asyncio.create_task(self._watch())

    def touch(self) -> None:
        """Something was asked of the sandbox."""
        self._touched = time.monotonic()

    def end(self) -> None:
        """Stop counting."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._task = None

    async def _watch(self) -> None:
        while True:
            now = time.monotonic()
            if self._max is not None and now - self._begun >= self._max:
                why = f"its lifetime of {self._max:g} s is over"
                break
            busy = self._busy()
            if busy:
                self._touched = now
            if self._idle is not None and now - self._touched >= self._idle:
                why = f"it was idle for {self._idle:g} s"
                break
            left = [_LONGEST_SLEEP_SECONDS]
            if self._max is not None:
                left.append(self._begun + self._max - now)
            if self._idle is not None:
                left.append(min(_BUSY_POLL_SECONDS, self._idle) if busy else self._touched + self._idle - now)
            await asyncio.sleep(max(0.001, min(left)))
        await self._expire(why)
