# SPDX-License-Identifier: MIT
"""A run that ends when its client goes away or the server stops.

A run is awaited by the very task that serves its request: what would end it calls back and cancels that task. Watching
with further tasks would cost a small run a tenth of its time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from agentbox.server.problems import Problem

_T = TypeVar("_T")
DISCONNECT = "disconnect"  # the name in an ASGI scope's state


class ClientGoneError(Exception):
    """The client closed the connection before its answer was complete."""


class Occasion:
    """Something that happens once: `set` says that it has, and calls everyone who waits for it."""

    __slots__ = ("_callbacks", "_happened")

    def __init__(self) -> None:
        self._happened = False
        self._callbacks: dict[Callable[[], None], None] = {}

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._happened

    def set(self) -> None:
        """It happens now. Not from another thread."""
        self._happened = True
        for callback in list(self._callbacks):
            callback()

    def call(self, callback: Callable[[], None]) -> None:
        """Call `callback` when it happens, unless `forget` comes first."""
        self._callbacks[callback] = None

    def forget(self, callback: Callable[[], None]) -> None:
        """Do not call it any more."""
        self._callbacks.pop(callback, None)


async def supervised(run: Coroutine[Any, Any, _T], gone: Occasion, stopping: Occasion) -> _T:
    """The result of `run`, which is ended, and its end awaited, when the client is `gone` or the server `stopping`.

    Raises ClientGoneError, Problem (503) when the server stops, and what `run` raises.
    """
    if gone.is_set() or stopping.is_set():
        run.close()
        raise _ended(gone)
    serving = asyncio.current_task()
    assert serving is not None
    ended = False

    def end() -> None:
        nonlocal ended
        if not ended:
            ended = True
            serving.cancel()

    gone.call(end)
    stopping.call(end)
    try:
        result = await run
    except (asyncio.CancelledError, Exception):
        # Whatever else went wrong while it was being ended, nobody waits for it.
        if not ended:
            raise
    finally:
        gone.forget(end)
        stopping.forget(end)
        if ended:
            serving.uncancel()
    if ended:
        raise _ended(gone)
    return result


def _ended(gone: Occasion) -> Exception:
    if gone.is_set():
        return ClientGoneError()
    return Problem(503, "The server is stopping", "stopping", "send the request again later", {"Retry-After": "5"})
