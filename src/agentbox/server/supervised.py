# SPDX-License-Identifier: MIT
"""A run that ends when its client goes away or the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive

from agentbox.models import RunResult
from agentbox.server.problems import Problem


class ClientGoneError(Exception):
    """The client closed the connection before its answer was complete."""


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def supervised(run: Coroutine[Any, Any, RunResult], receive: Receive, stopping: asyncio.Event) -> RunResult:
    """The result of `run`. Its task is ended, and its end awaited, before this returns or raises.

    Raises ClientGoneError, Problem (503) when the server stops, and what `run` raises.
    """
    running = asyncio.create_task(run)
    watchers = (asyncio.create_task(_gone(receive)), asyncio.create_task(stopping.wait()))
    try:
        await asyncio.wait({running, *watchers}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        if stopping.is_set():
            raise Problem(
                503, "The server is stopping", "stopping", "send the request again later", {"Retry-After": "5"}
            )
        raise ClientGoneError
    finally:
        for task in (running, *watchers):
            task.cancel()
        await asyncio.gather(running, *watchers, return_exceptions=True)
