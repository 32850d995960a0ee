# SPDX-License-Identifier: MIT
"""What the clocks said: recorded many calls at a time, and served again in a replay, in the lane of the caller.

While a process has one lane, `clock_doors` puts calls into a list by itself and asks only when it is full. The list is
the program's to change, so nothing of it is believed but names and plain values.

A program that does nothing but look at a clock would write more trace than it does work. After many calls in a short
time its clocks stand still for a tenth of a millisecond at a time, and calls that saw the same are recorded as one.
"""

from __future__ import annotations

from time import monotonic

from .channel import text_of
from .effects import Effects
from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Twice as many: a name and a value for each. The host is told of so many calls at once.
KEPT = 512
# So many served calls lie ready for `clock_doors` at once: what is asked for in between takes them back.
_READY = 128
_EXACT = 40_000
_BUSY_SECONDS = 0.003
_STEP_SECONDS = 0.0001
_MAX_SAFE_INTEGER = (1 << 53) - 1


@sealed
class Clocks:
    """The calls of one process. `real` are the functions by their names, all in nanoseconds; `quick` is true while
    `clock_doors` may put calls into the first lane's list itself, name after value after name. While clocks go in
    steps, `still` is what one of them says, for `clock_doors` too: its name, what it says, how often that was seen. In
    a replay `ready` are calls that `clock_doors` may give the first lane itself, the next one last, while it is alone.
    """

    def __init__(self, effects: Effects, real: Any, quick: Any, still: Any, ready: Any) -> None:
        self._effects = effects
        self._lanes = effects.lanes
        self._real = real
        self._quick = quick
        self._still = still
        self._ready = ready
        self._offered = 0
        # Lanes with something in `calls` or `served`, except the first one.
        self._open: dict[int, Any] = {}
        self._told = 0
        self._since = monotonic()
        self._coarse = self._ended = False
        self._repeated = 0
        self._alone = True
        if not effects.replay:
            quick.append(True)

    def call(self, name: str) -> Any:
        """What the caller gets from a clock."""
        if type(name) is not str:
            raise TypeError("a clock has a name")
        lane = self._lanes.here()
        if ">" in lane.name or self._ended:
            # In a replay nothing of such an effect happens.
            return self._real[name]()
        if self._effects.replay:
            return self._served(lane, name)
        self._settle()
        value = self._real[name]()
        if self._coarse and self._alone:
            self._still[:] = [name, value, 0]
        elif self._coarse:
            again = self._stands_still(lane, name)
            if again is not None:
                return again
            lane.counts[name] = [monotonic(), value]
        lane.calls.extend((name, value))
        self._open[id(lane)] = lane
        if len(lane.calls) >= KEPT:
            self.tell(lane)
        return value

    def full(self) -> None:
        """The first lane's list is full."""
        self.tell(self._lanes.first())

    def tell(self, lane: Any) -> None:
        """Hand the calls of a lane to the host."""
        if self._effects.replay:
            return
        if lane.busy:
            # Another thread does so at this moment, before a fork or at the end.
            return
        lane.busy = True
        self._settle()
        taken = lane.calls[:]
        del lane.calls[: len(taken)]
        self._open.pop(id(lane), None)
        args = _text(taken)
        if args:
            self._effects.channel.send(
                f'{{"id":0,"kind":"observe","op":"clock.values","args":{args},"lane":{text_of(lane.name)}}}'.encode()
            )
            self._pace(taken)
        lane.busy = False

    def tell_first(self) -> None:
        """Hand over what the caller's lane holds: something else of it follows."""
        lane = self._lanes.outer()
        if lane.calls:
            self.tell(lane)

    def left(self) -> Any:
        """What a question says of calls that were served to the caller's lane and not made; None if there are none."""
        self._take_back()
        count = unused(self._lanes.outer())
        return {"unused": count} if count else None

    def tell_all(self) -> None:
        """Hand over what all lanes hold: before a fork, before another program, at the end."""
        self.tell(self._lanes.first())
        for lane in list(self._open.values()):
            self.tell(lane)

    def end(self) -> None:
        """The program has ended; what runs now, while it is taken apart, is neither recorded nor served."""
        self._quick.clear()
        self._ended = True
        if self._effects.replay:
            self._take_back()
            for lane in (self._lanes.first(), *list(self._open.values())):
                left = unused(lane)
                if left:
                    self._effects.ask("serve", "clock.rest", "{}", lane.name, {"unused": left})
                    lane.served = None
        else:
            self.tell_all()

    def more_lanes(self) -> None:
        """From now on each call must be asked about: whose it is."""
        self._settle()
        self._take_back()
        self._alone = False
        self._quick.clear()

    def effect(self, inside: bool) -> None:
        """The caller enters an effect that is recorded as one, or has left it."""
        self._settle()
        self._take_back()
        if self._alone and not self._effects.replay:
            self._quick[:] = [] if inside or self._coarse else [True]

    def forked(self) -> None:
        """In the child after a fork."""
        self._open.clear()
        self._ready.clear()
        self._offered = 0
        self._alone = True
        if self._effects.replay:
            return
        self._lanes.on_more = self.more_lanes
        self._quick[:] = [] if self._coarse else [True]

    def _served(self, lane: Any, name: str) -> Any:
        self._take_back()
        served = lane.served
        if not served or served[-1][0] != name:
            left = unused(lane)
            text = text_of({"call": name})
            refused, answer = self._effects.ask(
                "serve", "clock.values", text, lane.name, {"unused": left} if left else None
            )
            if refused is not None:
                raise refused
            served = lane.served = list(reversed(answer["result"]["calls"]))
            self._open[id(lane)] = lane
        entry = served[-1]
        if len(entry) > 2 and entry[2] > 1:
            entry[2] -= 1
        else:
            served.pop()
            if not served:
                self._open.pop(id(lane), None)
            elif self._alone and lane is self._lanes.first():
                self._offer(served)
        return entry[1]

    def _offer(self, served: Any) -> None:
        """Lay the next calls ready. The list is the program's to change: what counts is only how long it is."""
        offered = []
        for entry in reversed(served[-_READY:]):
            if len(entry) > 2:
                break
            offered.append((entry[0], int(entry[1])))
        self._offered = len(offered)
        self._ready[:] = reversed(offered)

    def _take_back(self) -> None:
        """Count what was used of the calls that lay ready."""
        if not self._offered:
            return
        used = self._offered - min(self._offered, len(self._ready))
        self._ready.clear()
        self._offered = 0
        served = self._lanes.first().served
        if used:
            del served[len(served) - used :]

    def _settle(self) -> None:
        """Take over what was seen of a clock that stood still."""
        if not self._still:
            return
        name, _, times = self._still
        self._still.clear()
        if type(times) is int and times > 0:
            self._repeated += times
            self._lanes.first().calls.extend((name, [times]))

    def _stands_still(self, lane: Any, name: str) -> Any:
        """What a clock says that moves in steps, when it has not moved; None when it has."""
        last = lane.counts.get(name)
        calls = lane.calls
        if last is None or len(calls) < 2 or monotonic() - last[0] >= _STEP_SECONDS:
            return None
        before, times = calls[-2], calls[-1]
        if type(before) is not str or before != name:
            return None
        if _is_times(times):
            times[0] += 1
        else:
            calls.extend((name, [1]))
        self._repeated += 1
        return last[1]

    def _pace(self, calls: Any) -> None:
        """Whether the program looks at its clocks so often that they go in steps now."""
        before, self._since = self._since, monotonic()
        self._told += len(calls)
        busy = self._told > _EXACT and self._since - before < _BUSY_SECONDS and len(calls) >= KEPT
        if self._coarse:
            # While they go in steps, a full list takes that many steps at least.
            busy = self._repeated > KEPT
            self._repeated = 0
        if busy is not self._coarse:
            self._coarse = busy
            if self._alone:
                self._quick[:] = [] if busy else [True]


def unused(lane: Any) -> int:
    """How many of the steps that the host served were not done to their end."""
    return len(lane.served) if lane.served else 0


def _text(calls: Any) -> str:
    """What is told of calls: runs of one clock as its first value and what follows as differences, where `[n]` stands
    for n calls that saw the value before it. A program can have put anything there; then nothing is told."""
    names, values = calls[::2], calls[1::2]
    if len(names) != len(values) or not names or [name for name in names if type(name) is not str]:
        return ""
    runs = []
    start = 0
    if names.count(names[0]) == len(names):
        runs.append(_run(names[0], values))
    else:
        for at in range(1, len(names) + 1):
            if at == len(names) or names[at] != names[start]:
                runs.append(_run(names[start], values[start:at]))
                start = at
    return '{"calls":[' + ",".join([run for run in runs if run]) + "]}"


def _run(name: str, values: Any) -> str:
    other = [value for value in values if type(value) is not int]
    if not other and max(values) - min(values) > _MAX_SAFE_INTEGER:
        return ",".join([_run(name, [value]) for value in values])
    if not other:
        first = values[0]
        # In C as far as possible: a program may do little else than look at a clock.
        before = [first, *values]
        more = str([value - before[at] for at, value in enumerate(values)][1:]) if len(values) > 1 else ""
    elif type(values[0]) is int and not [value for value in other if not _is_times(value)]:
        first = last = values[0]
        steps: list[Any] = []
        for value in values[1:]:
            if type(value) is list:
                steps.append(value)
            else:
                steps.append(value - last)
                last = value
        more = str(steps)
    else:
        return ""
    shown = str(first) if -_MAX_SAFE_INTEGER <= first <= _MAX_SAFE_INTEGER else f'"{first}"'
    return f"[{text_of(name)},{shown},{more}]" if more else f"[{text_of(name)},{shown}]"


def _is_times(value: Any) -> bool:
    return type(value) is list and len(value) == 1 and type(value[0]) is int
