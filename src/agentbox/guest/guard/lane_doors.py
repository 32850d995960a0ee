# SPDX-License-Identifier: MIT
"""Where lanes begin: threads, asyncio tasks, calls given to a pool of threads. As `doors`, nothing here holds anything
of the guard; a lane's record is data.
"""

from __future__ import annotations

import _thread
import atexit
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ENDING = ("_exit", "abort")


def install(ask: Any, generators: Any, bound: Any, replace: Any, later: Any) -> None:
    """Put the functions in their places. The list `generators` has the context variable of random numbers, which one
    lane does not share with another, if there are any."""
    for name in _ENDING:
        replace(name, _ending(getattr(posix, name), ask, bound, name))
    atexit.register(lambda: ask("ends"))
    real = _thread.start_new_thread

    def start_new_thread(_: Any, function: Any, *arguments: Any) -> int:
        lane = ask("starts thread", function)
        if lane is None:
            return real(function, *arguments)
        return real(_in_lane(ask, lane, function, generators), *arguments)

    door = bound(start_new_thread, "start_new_thread")
    _thread.start_new_thread = _thread.start_new = door

    def patch_threading(module: Any) -> None:
        if module._start_new_thread is real:
            module._start_new_thread = door

    # From CPython 3.13 on it starts threads by a function of its own, which an event tells of.
    if hasattr(sys.modules.get("threading"), "_start_new_thread"):
        patch_threading(sys.modules["threading"])
    later("asyncio.base_events", lambda module: _patch_loop(module.BaseEventLoop, ask, generators))
    later("concurrent.futures.thread", lambda module: _patch_pool(module._WorkItem, ask, generators))
    later("multiprocessing.pool", lambda module: _patch_thread_pool(module.ThreadPool, ask, generators))


def _ending(real: Any, ask: Any, bound: Any, name: str) -> Any:
    """A function after which nothing runs any more."""

    def end(_: Any, *arguments: Any, **named: Any) -> None:
        ask("ends")
        real(*arguments, **named)

    return bound(end, name)


def _in_lane(ask: Any, lane: Any, function: Any, generators: Any) -> Any:
    """A function that runs in a lane, with random numbers of its own."""

    def run(*arguments: Any, **named: Any) -> Any:
        ask("enter lane", lane)
        before = [(variable, variable.set(None)) for variable in generators]
        try:
            return function(*arguments, **named)
        finally:
            for variable, token in before:
                variable.reset(token)
            ask("leave lane")

    return run


def _patch_loop(kind: Any, ask: Any, generators: Any) -> None:
    """A task copies the context of who makes it: for that moment the context says the task's lane."""
    real = kind.create_task
    lanes = ask("task variable")

    def create(self: Any, coro: Any, **named: Any) -> Any:
        given = named.get("context")
        if given is not None:
            # A context that several tasks share stays the first one's.
            if given.get(lanes) is None or given.get(lanes) is lanes.get(None):
                lane = ask("task lane")
                try:
                    given.run(lanes.set, lane)
                except RuntimeError:
                    # It is the one that runs now: the task goes on in the lane of who makes it.
                    return real(self, coro, **named)
            return real(self, coro, **named)
        before = [(lanes, lanes.set(ask("task lane")))]
        before += [(variable, variable.set(None)) for variable in generators]
        try:
            return real(self, coro, **named)
        finally:
            for variable, token in before:
                variable.reset(token)

    create.__doc__, create.__name__, create.__qualname__ = real.__doc__, real.__name__, real.__qualname__
    create.__module__ = real.__module__
    kind.create_task = create


def _patch_pool(kind: Any, ask: Any, generators: Any) -> None:
    """A call has the lane that it got when it was given to the pool, whichever thread runs it."""
    real_init, real_run = kind.__init__, kind.run

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        real_init(self, *arguments, **named)
        self._agentbox_lane = ask("call lane")

    def run(self: Any, *arguments: Any, **named: Any) -> Any:
        return _in_lane(ask, self._agentbox_lane, real_run, generators)(self, *arguments, **named)

    kind.__init__, kind.run = init, run


def _patch_thread_pool(kind: Any, ask: Any, generators: Any) -> None:
    """The same for pools of `multiprocessing`: which lane gave a chunk is not known where it is queued, but its number
    is."""
    real = kind._setup_queues

    def _setup_queues(self: Any) -> None:
        real(self)
        put = self._quick_put

        def quick_put(chunk: Any) -> None:
            if type(chunk) is tuple and len(chunk) == 5 and callable(chunk[2]):
                lane = ask("chunk lane", chunk[0], chunk[1])
                chunk = (*chunk[:2], _in_lane(ask, lane, chunk[2], generators), *chunk[3:])
            put(chunk)

        self._quick_put = quick_put

    kind._setup_queues = _setup_queues
