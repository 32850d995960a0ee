# SPDX-License-Identifier: MIT
"""Which thread or asyncio task an effect belongs to, by names that are the same in the next run.

The main thread is `main`; the nth thread that a lane starts is `LANE.n`; a task of an event loop is `LANE/NAME` with
the name that asyncio gives it, which counts tasks in the order of their making.
"""

from __future__ import annotations

import sys
from _thread import _local, get_ident

from .seal import Method, sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_CHARACTERS = 64
_MAX_STARTED = 100_000
_MAIN = "main"
_MODULE = type(sys)
_LOOK_UP: Any = object.__getattribute__


@sealed
class Lanes:
    """The lanes of this process."""

    def __init__(self, with_event_loops: bool) -> None:
        # Asking asyncio runs code that the program can replace, with the guard's frames below it.
        self._with_event_loops = with_event_loops
        self._main = get_ident()
        self._current = _local()
        self._started: dict[int, Any] = {}
        self._children: dict[str, int] = {}
        self._unnamed = 0
        self._loaded = sys.modules
        # Threads that are inside an effect which is recorded as one, by how deep.
        self._inside: dict[int, int] = {}

    def enter(self) -> None:
        """This thread begins an effect that is recorded as one: what it does inside has a lane of its own."""
        me = get_ident()
        self._inside[me] = self._inside.get(me, 0) + 1

    def leave(self) -> None:
        """The effect is over."""
        me = get_ident()
        depth = self._inside.pop(me, 1) - 1
        if depth:
            self._inside[me] = depth

    def is_inside(self) -> bool:
        """Whether this thread is inside such an effect."""
        return bool(self._inside) and get_ident() in self._inside

    def thread_starts(self, function: Any) -> None:
        """A thread will run `function`: its lane follows from the one that starts it."""
        parent = self.of_thread()
        number = self._children.get(parent, 0)
        self._children[parent] = number + 1
        if type(function) is Method and len(self._started) < _MAX_STARTED:
            thread = function.__self__
            self._started[id(thread)] = (thread, f"{parent}.{number}")

    def forked(self) -> None:
        """In a child after fork the one thread that is left goes on as the main one."""
        self._main = get_ident()

    def of_thread(self) -> str:
        """The lane of the calling thread."""
        me = get_ident()
        if me == self._main:
            return _MAIN
        lane = getattr(self._current, "lane", None)
        if lane is None:
            lane = self._current.lane = self._find(me)
        return str(lane)

    def current(self) -> str:
        """The lane of the caller: its thread's, or its task's; with `>` behind it inside an effect."""
        if self._inside and get_ident() in self._inside:
            return self._outside()[: _MAX_CHARACTERS - 1] + ">"
        return self._outside()

    def _outside(self) -> str:
        lane = self.of_thread()
        if not self._with_event_loops:
            return lane
        running = self._loaded.get("_asyncio")
        if running is None or "asyncio" not in self._loaded:
            return lane
        try:
            loop = running._get_running_loop()
            current = None if loop is None else self._loaded["asyncio"].current_task(loop)
            return lane if current is None else f"{lane}/{current.get_name()}"[:_MAX_CHARACTERS]
        except Exception:
            return lane

    def _find(self, me: int) -> str:
        threading = self._loaded.get("threading")
        active = threading.__dict__.get("_active") if type(threading) is _MODULE else None
        thread = active.get(me) if type(active) is dict else None
        started = self._started.pop(id(thread), None)
        if started is not None and started[0] is thread:
            return str(started[1][:_MAX_CHARACTERS])
        # Before CPython 3.12 no event says that a thread starts; threading numbers them in the order of their making.
        name = (
            thread.__dict__.get("_name") if thread is not None and type(thread).__getattribute__ is _LOOK_UP else None
        )
        if type(name) is str:
            return name[:_MAX_CHARACTERS]
        self._unnamed += 1
        return f"thread.{self._unnamed}"
