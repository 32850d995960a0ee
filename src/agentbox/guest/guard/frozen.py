# SPDX-License-Identifier: MIT
"""A run that can be replayed, and its replay: lanes for all that runs at once, and recorded or served clocks and
randomness. Loaded only there.
"""

from __future__ import annotations

import sys
from _thread import get_ident

from .clocks import Clocks
from .effects import Effects
from .randomness import Randomness
from .seal import Method, sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# From then on an event tells of every thread.
_HAS_EVENT = sys.version_info >= (3, 12)


@sealed
class Frozen:
    """The answers of one process to what the doors ask. `seed` is the run's, `real` are the clocks by their names."""

    def __init__(self, effects: Effects, seed: bytes, sha256: Any, real: Any) -> None:
        self._effects = effects
        self._lanes = effects.lanes
        # What the doors look at by themselves.
        self.calls = self._lanes.first().calls
        self.quick: list[Any] = []
        self.still: list[Any] = []
        self.ready: list[Any] = []
        self.one: list[bool] = [True]
        self.inside: list[int] = []
        self._inside: list[int] = []
        self._many = False
        self._variable: Any = None
        self._clocks = Clocks(effects, real, self.quick, self.still, self.ready)
        self._randomness = Randomness(self._lanes, seed, sha256)
        self._lanes.on_more = self.more_lanes
        self._lanes.on_effect = self.on_effect
        effects.clocks = self._clocks

    def services(self) -> Any:
        """The answers by what is asked."""
        lanes = self._lanes
        return {
            "clock": self._clocks.call,
            "clocks are full": self._clocks.full,
            "draw": self.draw,
            "draw blocks": self._randomness.blocks,
            "stretch": self.stretch,
            "ends": self._clocks.end,
            "starts thread": self.starts_thread,
            "enter lane": lanes.enter,
            "leave lane": lanes.leave,
            "task variable": self.variable_of_loops,
            "task lane": lanes.in_loop,
            "call lane": self.call_lane,
            "chunk lane": self.chunk_lane,
        }

    def draw(self, size: Any) -> Any:
        """Random bytes."""
        if type(size) is not int:
            raise TypeError("an integer is required")
        return self._randomness.draw(size)

    def stretch(self, block: Any, size: Any) -> Any:
        """Many random bytes of a block."""
        if type(block) is not bytes or type(size) is not int:
            raise TypeError("a block and an integer are required")
        return self._randomness.stretched(block, size)

    def starts_thread(self, function: Any) -> Any:
        """A thread is about to start: its lane, where nothing else would give it one."""
        if type(function) is not Method:
            return self._lanes.child(".")
        if not _HAS_EVENT:
            self._lanes.thread_starts(function)
        return None

    def variable_of_loops(self) -> Any:
        """The context variable of a task's lane, for an event loop that gives tasks theirs."""
        if self._variable is None:
            from _contextvars import ContextVar

            self._variable = ContextVar("lane")
            self._lanes.keep_in(self._variable)
        return self._variable

    def call_lane(self) -> Any:
        """The lane of a call that is given to a pool now."""
        return self._lanes.child(":")

    def chunk_lane(self, number: Any, chunk: Any) -> Any:
        """The lane of a chunk of work: the pools of a process number what they are given."""
        return self._lanes.other(f"pool:{number}.{chunk}" if type(number) is type(chunk) is int else "pool")

    def more_lanes(self) -> None:
        """A second lane begins."""
        self._clocks.more_lanes()
        self._many = True
        self.one.clear()

    def on_effect(self, inside: bool) -> None:
        """The caller enters an effect that is recorded as one, or leaves it."""
        self._clocks.effect(inside)
        me = get_ident()
        if inside:
            self._inside.append(me)
            self.one.clear()
        else:
            self._inside.remove(me)
            self.one[:] = [] if self._many else [True]
        self.inside[:] = self._inside

    def forks(self) -> None:
        """Before a fork."""
        self._clocks.tell_all()
        self._lanes.forks()

    def forked(self) -> None:
        """In the child after a fork, when it has its lane."""
        self._clocks.forked()
        self._lanes.on_more = self.more_lanes
        self._inside.clear()
        self.inside.clear()
        self._many = False
        self.one[:] = [True]
