# SPDX-License-Identifier: MIT
"""Boxes whose kernel has booted and that wait for their one use."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from agentbox.errors import AgentboxError

_log = logging.getLogger("agentbox.isolation")
# Who took a box is at work for a moment, and should not share the processor with the boot of the next.
_BREATH_SECONDS = 0.2


class Waiting(Protocol):
    """A box in stock."""

    def is_alive(self) -> bool:
        """Whether it can still be used."""

    async def destroy(self) -> None:
        """End it. May be called twice; does not raise."""


_Box = TypeVar("_Box", bound=Waiting)
_Kind = TypeVar("_Kind")


class Stock(Generic[_Kind, _Box]):
    """Up to `size` boxes of one kind, that which was asked for last; made in the background, after the first question.
    A box that cannot be made is not tried again before the next question."""

    def __init__(self, size: int, make: Callable[[_Kind], Awaitable[_Box]]) -> None:
        self._size = size
        self._make = make
        self._kind: _Kind | None = None
        self._boxes: deque[_Box] = deque()
        self._filling: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many boxes wait."""
        return len(self._boxes)

    def take(self, kind: _Kind) -> _Box | None:
        """A box of that kind, the caller's from now on; None where none waits. Others of it are made soon."""
        if self._closed or not self._size:
            return None
        if kind != self._kind:
            self._kind = kind
            self._end_all()
        found = None
        while self._boxes and found is None:
            box = self._boxes.popleft()
            if box.is_alive():
                found = box
            else:
                self._end(box)
        if self._filling is None or self._filling.done():
            self._filling = asyncio.create_task(self._fill())
        return found

    async def filled(self) -> None:
        """Wait until nothing is being made."""
        while self._filling is not None and not self._filling.done():
            await asyncio.wait({self._filling})

    async def _fill(self) -> None:
        await asyncio.sleep(_BREATH_SECONDS)
        while not self._closed and len(self._boxes) < self._size:
            kind = self._kind
            assert kind is not None
            try:
                box = await self._make(kind)
            except AgentboxError as error:
                _log.warning("no gVisor box in stock, so runs wait for theirs to boot: %s", error.message)
                return
            if self._closed or kind != self._kind:
                await box.destroy()
            else:
                self._boxes.append(box)

    def _end(self, box: _Box) -> None:
        ending = asyncio.create_task(box.destroy())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def _end_all(self) -> None:
        while self._boxes:
            self._end(self._boxes.popleft())

    async def close(self) -> None:
        """End everything that waits, and make nothing more. May be called twice."""
        self._closed = True
        if self._filling is not None:
            self._filling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._filling
        self._end_all()
        await asyncio.gather(*self._ending, return_exceptions=True)
