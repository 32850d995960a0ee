# SPDX-License-Identifier: MIT
"""Which thread or task an effect belongs to, by names that are the same in the next run.

The main thread of the command's own process is `main`. What a lane L starts is named by its kind and by how many of
that kind L started before: `L.n` a thread, `L/n` an asyncio task, `L:n` a call given to a thread pool, `L~n` the main
thread of a forked child. `L>` is what an effect does inside itself that is recorded as one. A worker thread of a pool
is `pool.n`: which call it runs is chance.
"""

from __future__ import annotations

import sys
from _thread import _local, get_ident
from _weakref import ref

from .seal import Method, Namespace, sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_CHARACTERS = 64
_KEPT_CHARACTERS = 47
_MAIN = "main"
_MODULE = type(sys)
_FUNCTION = type(lambda: None)
_LOOK_UP: Any = object.__getattribute__
_MAX_FORGOTTEN = 100_000


class _Token:
    __slots__ = ("__weakref__",)


@sealed
class Lanes:
    """The lanes of this process. A lane is a record: what it counts is `counts`, by the mark of its kind; `calls` are
    clock calls that the host has not got, `served` what the host gave and nobody called, both for `clocks`."""

    def __init__(self, with_event_loops: bool, sha256: Any = None) -> None:
        # Asking asyncio runs code that the program can replace, with the guard's frames below it.
        self._with_event_loops = with_event_loops
        self._sha256 = sha256
        self._main = get_ident()
        self._first = _lane(_MAIN, [])
        self._current = _local()
        self._started: dict[int, Any] = {}
        self._tokens: dict[int, Any] = {}
        self._pools = 0
        self._unnamed = 0
        self._loaded = sys.modules
        # The context variable that holds the lane of a task, where tasks are given lanes.
        self._task: Any = None
        self._fork = ""
        # While a process is forked that stands in for a program: no child of the program's.
        self.stand_in = False
        # Called once when a lane begins beside the first, and when one enters an effect or leaves it.
        self.on_more: Any = None
        self.on_effect: Any = None

    def keep_in(self, variable: Any) -> None:
        """From now on the lane of a task is kept in a context variable, and so is asked of nobody."""
        self._task = variable

    def here(self) -> Any:
        """The lane of the caller."""
        lane = self._outside()
        return lane.inside if lane.depth else lane

    def current(self) -> str:
        """The name of the lane of the caller."""
        lane = self._outside()
        name = lane.name
        if self._with_event_loops and lane.thread is None and "_asyncio" in self._loaded:
            name = self._of_event_loop(name)
        return name + ">" if lane.depth else str(name)

    def outer(self) -> Any:
        """The lane of the caller, also inside an effect."""
        return self._outside()

    def other(self, name: str) -> Any:
        """What stands for a lane of that name."""
        self._has_more()
        return self._token(_lane(self._named(name), []))

    def first(self) -> Any:
        """The lane of this process's main thread."""
        return self._first

    def number(self, lane: Any, mark: str) -> int:
        """How many of a kind a lane has started before."""
        number = lane.counts.get(mark, 0)
        lane.counts[mark] = number + 1
        return int(number)

    def child(self, mark: str) -> Any:
        """What stands for a lane of the next of a kind that the caller's starts."""
        return self._token(self._child(mark))

    def in_loop(self) -> Any:
        """What stands for a lane of the next task that the caller's makes."""
        made = self._child("/")
        made.thread = 0
        return self._token(made)

    def enter(self, token: Any) -> None:
        """This thread goes on in another lane, until it leaves it."""
        before = self._of_thread()
        found = self._tokens.get(id(token))
        self._current.before = (before, getattr(self._current, "before", None))
        if found is not None and found[0]() is token:
            self._current.lane = found[1]

    def leave(self) -> None:
        """This thread goes on in the lane that it was in before."""
        before = getattr(self._current, "before", None)
        if before is not None:
            self._current.lane, self._current.before = before

    def enter_effect(self) -> None:
        """The caller begins an effect that is recorded as one: what it does inside has a lane of its own."""
        lane = self._outside()
        if lane.inside is None:
            lane.inside = _lane(lane.name + ">", [])
        lane.depth += 1
        if lane.depth == 1 and self.on_effect is not None:
            self.on_effect(True)

    def leave_effect(self) -> None:
        """The effect is over."""
        lane = self._outside()
        lane.depth = max(0, lane.depth - 1)
        if not lane.depth and self.on_effect is not None:
            self.on_effect(False)

    def is_inside(self) -> bool:
        """Whether the caller is inside such an effect."""
        return bool(self._outside().depth)

    def thread_starts(self, function: Any) -> None:
        """A thread will run `function`: its lane follows from the one that starts it."""
        if type(function) is not Method:
            return
        thread = function.__self__
        if _is_worker(thread):
            self._has_more()
            lane = _lane(f"pool.{self._pools}", [])
            self._pools += 1
        else:
            lane = self._child(".")
        key, started = id(thread), self._started
        if len(started) >= _MAX_FORGOTTEN:
            started.clear()
        try:
            started[key] = (ref(thread, lambda _: started.pop(key, None)), lane)
        except TypeError:
            return

    def forks(self) -> None:
        """Before a fork: the child's lane has its name from the parent's."""
        if not self.stand_in:
            parent = self.here()
            self._fork = self._named(f"{parent.name}~{self.number(parent, '~')}")

    def forked(self) -> None:
        """In a child after fork the one thread that is left goes on as the main one."""
        self._main = get_ident()
        # It stays the record that it is: others hold it, and the list of its calls.
        first = self._first
        first.name = self._fork or first.name
        first.calls.clear()
        first.counts.clear()
        first.served = first.thread = first.inside = None
        first.depth = 0
        first.busy = False
        self._started.clear()
        self._current = _local()
        if self._task is not None and self._task.get(None) is not None:
            first.thread = self._main
            self._task.set(self._token(first))

    def _outside(self) -> Any:
        """The lane of the caller, whatever effect it is inside of."""
        if self._task is not None:
            token = self._task.get(None)
            found = None if token is None else self._tokens.get(id(token))
            if found is not None and found[0]() is token:
                lane, me = found[1], get_ident()
                if lane.thread == me:
                    return lane
                if not lane.thread:
                    # A task runs in the thread where it ran first; elsewhere is only a copy of its context.
                    lane.thread = me
                    return lane
        return self._of_thread()

    def _of_thread(self) -> Any:
        me = get_ident()
        lane = getattr(self._current, "lane", None)
        if lane is None:
            lane = self._first if me == self._main else self._find(me)
            self._current.lane = lane
        return lane

    def _of_event_loop(self, lane: str) -> str:
        """The name of the running task where tasks were not given lanes."""
        try:
            loop = self._loaded["_asyncio"]._get_running_loop()
            current = None if loop is None else self._loaded["asyncio"].current_task(loop)
            return lane if current is None else self._named(f"{lane}/{current.get_name()}")
        except Exception:
            return lane

    def _child(self, mark: str) -> Any:
        parent = self.here()
        self._has_more()
        return _lane(self._named(f"{parent.name}{mark}{self.number(parent, mark)}"), [])

    def _token(self, lane: Any) -> Any:
        """What a program can hold of a lane: nothing but that it is this one. The lane lives as long."""
        made = _Token()
        key, tokens = id(made), self._tokens
        tokens[key] = (ref(made, lambda _: tokens.pop(key, None)), lane)
        return made

    def _find(self, me: int) -> Any:
        self._has_more()
        threading = self._loaded.get("threading")
        active = threading.__dict__.get("_active") if type(threading) is _MODULE else None
        thread = active.get(me) if type(active) is dict else None
        started = self._started.pop(id(thread), None)
        if started is not None and started[0]() is thread:
            return started[1]
        # Before CPython 3.12 no event says that a thread starts; threading numbers them in the order of their making.
        name = (
            thread.__dict__.get("_name") if thread is not None and type(thread).__getattribute__ is _LOOK_UP else None
        )
        if type(name) is not str:
            self._unnamed += 1
            name = f"thread.{self._unnamed}"
        return _lane(self._named(name), [])

    def _has_more(self) -> None:
        if self.on_more is not None:
            self.on_more()
            self.on_more = None

    def _named(self, name: str) -> str:
        """A name that a frame can hold; room is left for the mark of an effect."""
        if len(name) < _MAX_CHARACTERS:
            return name
        if self._sha256 is None:
            return name[: _MAX_CHARACTERS - 1]
        digest = self._sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:15]
        return f"{name[:_KEPT_CHARACTERS]}#{digest}"


def _lane(name: str, calls: Any) -> Any:
    made = Namespace()
    made.name = name
    made.calls = calls
    made.served = made.thread = made.inside = None
    made.counts = {}
    made.depth = 0
    made.busy = False
    return made


def _is_worker(thread: Any) -> bool:
    """Whether a thread is one of a pool of `concurrent.futures`, which starts them when it sees fit."""
    if type(thread).__getattribute__ is not _LOOK_UP:
        return False
    target = thread.__dict__.get("_target")
    module = target.__module__ if type(target) is _FUNCTION else None
    return type(module) is str and module == "concurrent.futures.thread" and target.__name__ == "_worker"
