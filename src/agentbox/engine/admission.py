# SPDX-License-Identifier: MIT
"""Bounded admission: at most so many runs at work, at most so many waiting, first come first served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from agentbox.errors import OverloadedError


class Admission:
    """Hands out places. A run that finds the queue full is refused at once."""

    def __init__(self, places: int, queue: int) -> None:
        self._places = asyncio.Semaphore(places)
        self._queue = queue
        self.waiting = 0
        self.working = 0

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place for the block. Raises OverloadedError."""
        if self._places.locked() and self.waiting >= self._queue:
            raise OverloadedError(
                f"{self.working} runs are at work and {self.waiting} are waiting",
                hint="try again later, or raise AGENTBOX_MAX_QUEUED_RUNS",
                retry_after_seconds=1,
            )
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        self.working += 1
        try:
            yield
        finally:
            self.working -= 1
            self._places.release()
