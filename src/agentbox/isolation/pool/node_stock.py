# SPDX-License-Identifier: MIT
"""The stock of warm Node: boxes in which one waits, made anew off the path of requests."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from agentbox.errors import AgentboxError
from agentbox.isolation.backend import Program
from agentbox.isolation.pool.box import WarmProgram
from agentbox.isolation.pool.node_box import WaitingNode, accepts
from agentbox.models import Confinement

if TYPE_CHECKING:
    from agentbox.isolation.pool.pool import PooledLiveBox

_log = logging.getLogger("agentbox.pool")
# A Node that cannot be started is tried again after so long, and then ever less often.
_RETRY_SECONDS = 5.0
_MAX_RETRY_SECONDS = 300.0
# A run that has just got its box, and may be over in a moment, is not disturbed by the making of the next one.
_PAUSE_SECONDS = 0.1


class NodeStock:
    """`size` boxes, for every owner: each Node is a process of its own that was not forked from another one, so one run
    tells nothing about the next.

    `make` makes a box, `bury` sees to it that one is taken apart.
    """

    def __init__(
        self,
        size: int,
        confinement: Confinement,
        program: WarmProgram,
        make: Callable[[Confinement], Awaitable[PooledLiveBox]],
        bury: Callable[[PooledLiveBox], None],
    ) -> None:
        self._size = size
        self._confinement = confinement
        self._program = program
        self._make = make
        self._bury = bury
        self._ready: deque[PooledLiveBox] = deque()
        self._claim: asyncio.Future[PooledLiveBox | None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._being_made = False
        self._closed = False

    def fits(self, confinement: Confinement, program: Program) -> bool:
        """Whether a box of this stock can run that program under that confinement."""
        mine, limits = self._confinement, confinement.limits
        return (
            accepts(self._program, program.argv, program.env)
            and limits.disk_mb == mine.limits.disk_mb
            # The number of processes is a limit of the one that has started; its control group can be lowered.
            and limits.pids <= mine.limits.pids
        )

    async def take(self) -> PooledLiveBox | None:
        """A box whose Node waits; the one that is being made, when nobody else waits for it. None when there is none:
        then one must be started cold."""
        while self._ready:
            box = self._ready.popleft()
            if box.pooled.waiting is not None and box.pooled.waiting.fresh:
                self._restock_later()
                return box
            self._bury(box)
        if not self._being_made or self._claim is not None:
            self._restock_later()
            return None
        claim: asyncio.Future[PooledLiveBox | None] = asyncio.get_running_loop().create_future()
        self._claim = claim
        try:
            return await claim
        except asyncio.CancelledError:
            if claim.done() and not claim.cancelled():
                given = claim.result()
                if given is not None:
                    self._bury(given)
            raise
        finally:
            if self._claim is claim:
                self._claim = None

    def _restock_later(self) -> None:
        asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self.restock)

    def restock(self) -> None:
        """Begin to make what is missing; called when a run has ended, too."""
        if not self._closed and len(self._ready) < self._size and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._fill())

    async def _fill(self) -> None:
        pause = _RETRY_SECONDS
        while not self._closed and len(self._ready) < self._size:
            try:
                self._being_made = True
                box = await self._one()
            except (AgentboxError, OSError) as error:
                self._being_made = False
                self._settle(None)
                _log.warning("the stock of warm Node cannot be filled: %s", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_RETRY_SECONDS)
            else:
                self._keep(box)
                pause = _RETRY_SECONDS
            finally:
                self._being_made = False
                self._settle(None)

    async def _one(self) -> PooledLiveBox:
        box = await self._make(self._confinement)
        node = WaitingNode(self._program)
        try:
            await node.start(box.pooled)
        except BaseException:
            self._bury(box)
            raise
        box.pooled.waiting = node
        box.start_kind = "warm"
        node.on_gone = lambda: self._drop(box)
        return box

    def _keep(self, box: PooledLiveBox) -> None:
        if self._closed:
            self._bury(box)
        elif not self._settle(box):
            self._ready.append(box)

    def _settle(self, box: PooledLiveBox | None) -> bool:
        """Give a box, or the news that there will be none, to the one who waits."""
        claim, self._claim = self._claim, None
        if claim is None or claim.done():
            return False
        claim.set_result(box)
        return True

    def _drop(self, box: PooledLiveBox) -> None:
        """Its Node ended while it waited."""
        if box in self._ready:
            self._ready.remove(box)
            self._bury(box)
            asyncio.get_running_loop().call_soon(self.restock)

    def clear(self) -> None:
        """Give up what is in stock, and what is being made: the maker of its boxes is gone."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        while self._ready:
            self._bury(self._ready.popleft())

    async def close(self) -> None:
        """End it; boxes that were taken are their users'."""
        self._closed = True
        task = self._task
        self.clear()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    @property
    def ready(self) -> int:
        """How many wait."""
        return len(self._ready)
