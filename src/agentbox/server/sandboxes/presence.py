# SPDX-License-Identifier: MIT
"""How long a keeper goes on without a server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from agentbox.server.supervised import DISCONNECT, Occasion

# A server that is started again finds its keeper, also one that has nothing to keep.
IDLE_SECONDS = 2.0
# The server that starts a keeper comes within this time.
FIRST_SECONDS = 15.0


class Presence:
    """Servers that are there; each holds a request open. `holds` says whether there are boxes to keep."""

    def __init__(self, linger_seconds: float, holds: Callable[[], bool]) -> None:
        self._linger = linger_seconds
        self._holds = holds
        self._servers = 0
        self._left_at = 0.0
        self._changed = asyncio.Event()

    async def __call__(self, request: Request) -> ASGIApp:
        """The endpoint that servers hold open."""
        del request
        return self._stay

    async def _stay(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        gone: Occasion = scope["state"][DISCONNECT]
        left = asyncio.Event()
        gone.call(left.set)
        self._servers += 1
        self._changed.set()
        try:
            headers = [(b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"here\n", "more_body": True})
            if not gone.is_set():
                await left.wait()
        finally:
            gone.forget(left.set)
            self._servers -= 1
            self._changed.set()

    async def nobody_comes(self) -> None:
        """Returns when no server has been there for as long as boxes wait for one."""
        loop = asyncio.get_running_loop()
        wait = max(self._linger, FIRST_SECONDS)
        while True:
            self._changed.clear()
            begun = loop.time()
            while self._servers == 0:
                left = begun + wait - loop.time()
                if left <= 0:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._changed.wait()
                self._changed.clear()
            while self._servers:
                await self._changed.wait()
                self._changed.clear()
            wait = self._linger if self._holds() else min(self._linger, IDLE_SECONDS)
