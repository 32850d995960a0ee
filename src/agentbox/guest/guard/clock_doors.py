# SPDX-License-Identifier: MIT
"""The clocks that a program sees while it is recorded or replayed. As in `doors`, nothing here holds anything of
the guard.

What waits by a clock keeps the real one: an event loop, a lock with a timeout. Everything else of the standard library
gets what the program gets, because it writes it down: logging, `gzip`, `unittest`.
"""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MODULE = type(sys)
_FLOATS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
# As CPython makes seconds of them.
_NANOSECONDS = 1e9
_SHOWING = ("localtime", "gmtime", "ctime", "asctime", "strftime")
# Modules that wait, and their names for a clock or for the module of clocks.
WAITING = {
    "threading": ("_time",),
    "queue": ("time",),
    "subprocess": ("time", "_time"),
    "socketserver": ("time",),
    "telnetlib": ("_time",),
    "asyncio.base_events": ("time",),
    "concurrent.futures._base": ("time",),
    "multiprocessing.connection": ("time",),
    "multiprocessing.managers": ("time",),
    "multiprocessing.pool": ("time",),
    "multiprocessing.queues": ("time",),
    "multiprocessing.synchronize": ("time",),
}
# As CPython words it.
_UTCNOW = (
    "datetime.datetime.utcnow() is deprecated and scheduled for removal in a future version. Use timezone-aware objects"
    " to represent datetimes in UTC: datetime.datetime.now(datetime.UTC)."
)
# As in `clocks`, names and values.
_KEPT = 512
_STEP = 100_000


def real_clocks() -> dict[str, Any]:
    """The functions behind the names that calls are recorded by: each gives nanoseconds."""
    found = {}
    for name in _FLOATS:
        found[f"time.{name}"] = found[f"time.{name}_ns"] = getattr(time, f"{name}_ns")
    for name in (*[f"time.{name}" for name in _SHOWING], "datetime.now", "datetime.utcnow"):
        found[name] = time.time_ns
    for name, number in _numbered():
        found[name] = _reading(number)
    return found


def _numbered() -> Any:
    """The clocks that have a number: what a call of each is recorded as, and the number."""
    names = [name for name in vars(time) if name.startswith("CLOCK_")]
    return [(f"time.clock_gettime.{getattr(time, name)}", getattr(time, name)) for name in names]


def _reading(number: int) -> Any:
    read = getattr(time, "clock_gettime_ns", None)

    def clock() -> Any:
        return read(number)  # type: ignore[misc]

    return clock


def install(ask: Any, lists: Any, bound: Any, later: Any, replay: bool) -> None:
    """Put the clocks in their places. The first of the `lists` gets calls while the second has something in it; the
    third has what a clock says that stands still, the fourth what is served; else `ask` is asked. `bound` makes a
    function stay itself in a class; `later` takes, by the name of a module, what is done to it when it is loaded."""
    shadow = _MODULE("time")
    shadow.__dict__.update(time.__dict__)
    put = {}
    for name in _FLOATS:
        for whole in (False, True):
            shown = f"{name}_ns" if whole else name
            clock = _clock(f"time.{shown}", getattr(time, f"{name}_ns"), ask, lists, whole)
            put[shown] = _dressed(clock, shown, "time")
    for name in _SHOWING:
        put[name] = bound(_showing(name, getattr(time, name), ask, 1 if name == "strftime" else 0), name)
    if hasattr(time, "clock_gettime_ns"):
        for name in ("clock_gettime", "clock_gettime_ns"):
            put[name] = bound(_numbered_clock(name, getattr(time, name), ask), name)
    if replay:
        put["sleep"] = _sleep(time.sleep)
    for name, function in put.items():
        setattr(time, name, function)
    backwards = {id(function): getattr(shadow, name) for name, function in put.items()}

    def restore(names: Any) -> Any:
        def patch(module: Any) -> None:
            for name in names:
                found = module.__dict__.get(name)
                if found is time:
                    setattr(module, name, shadow)
                elif id(found) in backwards:
                    setattr(module, name, backwards[id(found)])

        return patch

    for module, names in WAITING.items():
        later(module, restore(names))
    later("datetime", lambda module: _patch_datetime(module, _clocks(ask, lists, shadow.time_ns)))


def _clock(called: str, real: Any, ask: Any, lists: Any, whole: bool) -> Any:
    """A function that gives what a clock says: whole nanoseconds, or seconds."""
    calls, quick, still, ready = lists
    add = calls.extend

    def asked() -> int:
        """What it says where that is not simply put into the list."""
        if still and still[0] is called and real() - still[1] < _STEP:
            still[2] += 1
            return int(still[1])
        if ready:
            try:
                entry = ready.pop()
            except IndexError:
                # Another thread began, which took back what lay ready.
                return int(ask("clock", called))
            if entry[0] == called:
                return int(entry[1])
            ready.append(entry)
        return int(ask("clock", called))

    # As an attribute of a class they get an instance, which the built-in functions do not.
    def clock(_: Any = None) -> Any:
        if not quick:
            return asked() / _NANOSECONDS
        value = real()
        add((called, value))
        if len(calls) >= _KEPT:
            ask("clocks are full")
        return value / _NANOSECONDS

    def whole_clock(_: Any = None) -> Any:
        if not quick:
            return asked()
        value = real()
        add((called, value))
        if len(calls) >= _KEPT:
            ask("clocks are full")
        return value

    return whole_clock if whole else clock


def _numbered_clock(name: str, real: Any, ask: Any) -> Any:
    known = {number for _, number in _numbered()}
    whole = name.endswith("_ns")

    def clock(_: Any, number: Any) -> Any:
        if type(number) is not int or number not in known:
            return real(number)
        value = int(ask("clock", f"time.clock_gettime.{number}"))
        return value if whole else value / _NANOSECONDS

    return clock


def _dressed(function: Any, name: str, module: str) -> Any:
    """A function that can be pickled as the one it stands for."""
    function.__name__ = function.__qualname__ = name
    function.__module__ = module
    return function


def _showing(name: str, real: Any, ask: Any, at: int) -> Any:
    """A function that shows a time, the present one when it is given none: behind `at` arguments."""
    called = f"time.{name}"
    broken_down = name in ("asctime", "strftime")
    local = time.localtime

    def show(_: Any, *arguments: Any) -> Any:
        if len(arguments) < at or (len(arguments) > at and (arguments[at] is not None or broken_down)):
            return real(*arguments)
        now = int(ask("clock", called)) / _NANOSECONDS
        return real(*arguments[:at], local(now) if broken_down else now)

    return show


def _sleep(real: Any) -> Any:
    """Sleeping while a replay runs: nobody waits for anything, unless another thread or an alarm is there to be met."""

    def sleep(*arguments: Any) -> None:
        seconds = arguments[-1] if arguments else real()
        # Its checks of what it is given.
        real(0 if type(seconds) in (int, float) and seconds >= 0 and not _is_awaited() else seconds)

    return _dressed(sleep, "sleep", "time")


def _is_awaited() -> bool:
    import _signal  # type: ignore[import-not-found]

    if any(_signal.getitimer(which)[0] for which in (_signal.ITIMER_REAL, _signal.ITIMER_VIRTUAL, _signal.ITIMER_PROF)):
        return True
    threads = sys.modules["_thread"]._count()
    # The main thread is none of these.
    return bool(threads)


class _Peek:
    """Takes the dictionary of a class out of its read-only view."""

    def __ror__(self, other: Any) -> Any:
        return other


# What was in a class must live on: the interpreter's caches do not own it.
_replaced: list[Any] = []


def _clocks(ask: Any, lists: Any, real: Any) -> Any:
    return [_clock(f"datetime.{name}", real, ask, lists, False) for name in ("now", "utcnow")]


def _patch_datetime(module: Any, clocks: Any) -> None:
    """`now` and `utcnow`; `today` asks `time.time` by itself. The class stays the same class."""
    found = module.datetime
    names = found.__dict__ | _Peek()
    if type(names) is not dict or not {"now", "utcnow", "fromtimestamp"} <= names.keys():
        return
    at = names["fromtimestamp"]
    utc = module.timezone.utc
    present, present_utc = clocks

    def now(cls: Any, tz: Any = None) -> Any:
        return at.__get__(None, cls)(present(), tz)

    def utcnow(cls: Any) -> Any:
        if sys.version_info >= (3, 12):
            import _warnings

            _warnings.warn(_UTCNOW, DeprecationWarning, 2)
        return at.__get__(None, cls)(present_utc(), utc).replace(tzinfo=None)

    for function in (now, utcnow):
        name = function.__name__
        function.__qualname__ = f"datetime.{name}"
        function.__module__ = "datetime"
        _replaced.append(names[name])
        function.__doc__ = names[name].__doc__
        names[name] = classmethod(function)
    clear = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache
    clear()
