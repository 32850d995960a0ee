# SPDX-License-Identifier: MIT
"""Pools of watched boxes, opened when the first run that would be served by one comes: many servers never have any."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from agentbox.errors import AgentboxError
from agentbox.isolation.pool.pool import WarmPool

_log = logging.getLogger("agentbox.pool")
_RETRY_SECONDS = 5.0


class LazyPool:
    """One pool that may not be there yet. `make` gives it, not started."""

    def __init__(self, owner: str, make: Callable[[], Awaitable[WarmPool]]) -> None:
        self._owner = owner
        self._make = make
        self._pool: WarmPool | None = None
        self._opening: asyncio.Task[None] | None = None
        self._tried_at = 0.0

    def ready(self) -> WarmPool | None:
        """The pool; None while it is opened, which this begins."""
        if self._pool is None:
            self.open()
        return self._pool

    def open(self) -> None:
        """Begin to open it, where that was not done, or failed a while ago."""
        opening = self._opening is not None and not self._opening.done()
        if self._pool is None and not opening and time.monotonic() - self._tried_at > _RETRY_SECONDS:
            self._tried_at = time.monotonic()
            self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        pool: WarmPool | None = None
        try:
            pool = await self._make()
            await pool.start(self._owner)
            self._pool = pool
        except (AgentboxError, OSError) as error:
            _log.warning("watched runs start cold: %s", error)
        finally:
            if self._pool is None and pool is not None:
                await pool.close()

    async def close(self) -> None:
        """End it."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()
