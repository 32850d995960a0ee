# SPDX-License-Identifier: MIT
"""Bounded admission, fair between keys: at most so many runs at work, at most so many waiting.

A free place goes to the waiting key that has the fewest runs at work, among equals to the one that was served longest
ago, and within a key to the run that has waited longest. So a key that asks for thousands of runs delays another key's
single run by no more than the next end of a run. A queue that is full takes a run in nevertheless when another key has
more waiting than this key would have: the newest of that key's is refused instead.

Everything here happens on the event loop's thread without a suspension, so each run is in one state at a time: refused,
waiting, or at work. A place is handed from the run that ends to the one that follows, never free in between.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from agentbox.engine.pace import Pace
from agentbox.errors import OverloadedError, QueueTimeoutError

OnQueued = Callable[[int], Awaitable[None]]


class Admission:
    """Hands out `places`. At most `queue` runs wait, `per_key` of one key (0: as many), `timeout_seconds` long each
    (0: as long as their callers do). `clock` gives monotonic seconds."""

    def __init__(
        self,
        places: int,
        queue: int,
        *,
        per_key: int = 0,
        timeout_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places = places
        self._queue = queue
        self._per_key = per_key or queue
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._pace = Pace(clock)
        self._working: dict[str, int] = {}
        # When each key was last given a place, counted in places. As many entries as there are keys.
        self._served: dict[str, int] = {}
        self._given = 0
        # The runs of each key that waits, the oldest first.
        self._lines: dict[str, OrderedDict[asyncio.Future[None], None]] = {}
        self.waiting = 0
        self.working = 0

    def place(self, key: str, on_queued: OnQueued | None = None) -> Place:
        """A place for one run of the key, held by `async with`. `on_queued` is awaited with the number of waiting runs
        when it has to wait. Entering raises OverloadedError, also its subclass QueueTimeoutError."""
        return Place(self, key, on_queued)

    def check(self, key: str) -> None:
        """Raise OverloadedError where a run of this key would be refused now."""
        if self.working >= self._places:
            self._room(key)

    def _take(self, key: str) -> None:
        self.working += 1
        self._begin(key)
        if self.working == self._places:
            self._pace.begin()

    def _begin(self, key: str) -> None:
        self._working[key] = self._working.get(key, 0) + 1
        self._given += 1
        self._served[key] = self._given

    def _give_back(self, key: str) -> None:
        """End the run of `key`; its place goes to the next one."""
        self._pace.count()
        left = self._working[key] - 1
        if left:
            self._working[key] = left
        else:
            del self._working[key]
        while self._lines:
            following = min(self._lines, key=self._share)
            turn = next(iter(self._lines[following]))
            self._remove(following, turn)
            # One that was cancelled a moment ago has yet to say so.
            if not turn.done():
                self._begin(following)
                turn.set_result(None)
                return
        self.working -= 1

    def _share(self, key: str) -> tuple[int, int]:
        """What the key has had: the least is served first."""
        return self._working.get(key, 0), self._served.get(key, 0)

    def _join(self, key: str) -> asyncio.Future[None]:
        """The end of the key's line. Raises OverloadedError."""
        longest = self._room(key)
        if longest is not None:
            displaced = next(reversed(self._lines[longest]))
            self._remove(longest, displaced)
            if not displaced.done():
                displaced.set_exception(self._full(longest))
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(key, OrderedDict())[turn] = None
        self.waiting += 1
        return turn

    def _room(self, key: str) -> str | None:
        """The key whose newest run must go for this one; None where there is room. Raises OverloadedError."""
        own = len(self._lines.get(key, ()))
        if own >= self._per_key and self._per_key < self._queue:
            raise self._full(key, of_key=True)
        if self.waiting < self._queue:
            return None
        longest = max(self._lines, key=lambda name: len(self._lines[name]), default=key)
        if len(self._lines.get(longest, ())) < own + 2:
            raise self._full(key)
        return longest

    def _full(self, key: str, *, of_key: bool = False) -> OverloadedError:
        own = len(self._lines.get(key, ()))
        # Keys are served in turn: what stands before this key's next run is at most its own runs times the keys.
        ahead = min(self.waiting, own * len(self._lines)) + 1
        seconds = self._pace.seconds_until(ahead)
        if of_key:
            raised, message = "AGENTBOX_QUEUE_RUNS_PER_KEY", f"{own} runs of this key are waiting"
        else:
            raised, message = (
                "AGENTBOX_MAX_QUEUED_RUNS",
                f"{self.working} runs are at work and {self.waiting} are waiting",
            )
        hint = f"try again in {seconds} seconds, or have the operator raise {raised}"
        return OverloadedError(message, hint=hint, retry_after_seconds=seconds)

    def _expire(self, key: str, turn: asyncio.Future[None]) -> None:
        if turn.done():
            return
        self._remove(key, turn)
        seconds = self._pace.seconds_until(self.waiting + 1)
        turn.set_exception(
            QueueTimeoutError(
                f"the run waited {self._timeout_seconds:g} seconds for a place, and did not begin",
                hint=f"try again in {seconds} seconds, or have the operator raise AGENTBOX_QUEUE_TIMEOUT_SECONDS or "
                "AGENTBOX_MAX_CONCURRENT_RUNS",
                retry_after_seconds=seconds,
            )
        )

    def _remove(self, key: str, turn: asyncio.Future[None]) -> None:
        """Take a run out of its line, if it is still there."""
        line = self._lines.get(key)
        if line is None or turn not in line:
            return
        del line[turn]
        self.waiting -= 1
        if not line:
            del self._lines[key]

    async def _wait(self, key: str, on_queued: OnQueued | None) -> float:
        """Wait for a place of the key; the seconds that it took."""
        begun = self._clock()
        turn = self._join(key)
        timer = None
        if self._timeout_seconds:
            timer = asyncio.get_running_loop().call_later(self._timeout_seconds, self._expire, key, turn)
        try:
            if on_queued is not None:
                await on_queued(self.waiting)
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                # The place came in the same moment as the end.
                self._give_back(key)
            else:
                self._remove(key, turn)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return self._clock() - begun


class Place:
    """The right to work, or to wait for it; see Admission.place. `waited_seconds` is 0 where a place was free."""

    __slots__ = ("_admission", "_key", "_on_queued", "waited_seconds")

    def __init__(self, admission: Admission, key: str, on_queued: OnQueued | None) -> None:
        self._admission = admission
        self._key = key
        self._on_queued = on_queued
        self.waited_seconds = 0.0

    async def __aenter__(self) -> Place:
        # Nobody waits while a place is free. There is no suspension on this path.
        if self._admission.working < self._admission._places:
            self._admission._take(self._key)
        else:
            self.waited_seconds = await self._admission._wait(self._key, self._on_queued)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._admission._give_back(self._key)
