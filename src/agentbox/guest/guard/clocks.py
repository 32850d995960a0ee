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

# The host is told of so many calls at once.
KEPT_CALLS = 64
_EXACT_CALLS = 20_000
_BUSY_SECONDS = 0.003
_STEP_SECONDS = 0.0001
_MAX_SAFE_INTEGER = (1 << 53) - 1
_MAX_TIMES = 1_000_000
_PLAIN = (float, int, str)


@sealed
class Clocks:
    """The calls of one process. `real` are the functions by their names, `quick` is true while `clock_doors` may put
    calls into the first lane's list itself."""

    def __init__(self, effects: Effects, real: Any, quick: Any) -> None:
        self._effects = effects
        self._lanes = effects.lanes
        self._real = real
        self._quick = quick
        # Lanes with something in `calls` or `served`, except the first one.
        self._open: dict[int, Any] = {}
        self._told = 0
        self._since = monotonic()
        self._coarse = False
        self._alone = True
        self._ended = effects.replay
        if not effects.replay:
            quick.append(True)

    def call(self, name: str) -> Any:
        """What the caller gets from a clock."""
        lane = self._lanes.here()
        if ">" in lane.name or name not in self._real:
            # In a replay nothing of such an effect happens.
            return self._real[name]()
        if self._effects.replay:
            return self._served(lane, name)
        value = self._real[name]()
        calls = lane.calls
        if self._coarse:
            last = lane.counts.get(name)
            now = monotonic()
            if last is not None and now - last[0] < _STEP_SECONDS and calls and _is_again(calls[-1], name, last[1]):
                calls[-1] = (name, last[1], calls[-1][2] + 1 if len(calls[-1]) > 2 else 2)
                return last[1]
            lane.counts[name] = (now, value)
        calls.append((name, value))
        self._open[id(lane)] = lane
        if len(calls) >= KEPT_CALLS:
            self.tell(lane)
        return value

    def full(self) -> None:
        """The first lane's list is full."""
        self.tell(self._lanes.first())

    def tell(self, lane: Any) -> None:
        """Hand the calls of a lane to the host."""
        if self._effects.replay:
            return
        calls = lane.calls
        taken = []
        # Another thread may do the same at this moment: each call is taken once.
        while calls:
            try:
                taken.append(calls.pop(0))
            except IndexError:
                break
        self._open.pop(id(lane), None)
        told = [entry for entry in [_entry(call) for call in taken] if entry is not None]
        if told:
            text = text_of({"calls": told})
            self._effects.channel.send(
                f'{{"id":0,"kind":"observe","op":"clock.values","args":{text},"lane":{text_of(lane.name)}}}'.encode(
                    "ascii"
                )
            )
            self._pace(told)

    def tell_first(self) -> None:
        """Hand over what the caller's lane holds: something else of it follows."""
        lane = self._lanes.outer()
        if lane.calls:
            self.tell(lane)

    def left(self) -> Any:
        """What a question says of calls that were served to the caller's lane and not made; None if there are none."""
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
        if self._effects.replay:
            for lane in (self._lanes.first(), *list(self._open.values())):
                left = unused(lane)
                if left:
                    self._effects.ask("serve", "clock.rest", "{}", lane.name, {"unused": left})
        else:
            self.tell_all()

    def more_lanes(self) -> None:
        """From now on each call must be asked about: whose it is."""
        self._alone = False
        self._quick.clear()

    def effect(self, inside: bool) -> None:
        """The caller enters an effect that is recorded as one, or has left it."""
        if self._alone and not self._effects.replay:
            self._quick[:] = [] if inside or self._coarse else [True]

    def forked(self) -> None:
        """In the child after a fork."""
        self._open.clear()
        if self._effects.replay:
            return
        self._alone = True
        self._lanes.on_more = self.more_lanes
        self._quick[:] = [] if self._coarse else [True]

    def _served(self, lane: Any, name: str) -> Any:
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
        return entry[1]

    def _pace(self, told: Any) -> None:
        """Whether the program looks at its clocks so often that they go in steps now."""
        before, self._since = self._since, monotonic()
        self._told += len(told)
        busy = self._told > _EXACT_CALLS and self._since - before < _BUSY_SECONDS and len(told) >= KEPT_CALLS
        if self._coarse:
            # While they go in steps, a full list takes that many steps at least.
            busy = sum([entry[2] for entry in told if len(entry) > 2]) > KEPT_CALLS
        if busy is not self._coarse:
            self._coarse = busy
            if self._alone:
                self._quick[:] = [] if busy else [True]


def unused(lane: Any) -> int:
    """How many calls the host served and nobody made."""
    return sum([entry[2] if len(entry) > 2 else 1 for entry in lane.served]) if lane.served else 0


def _is_again(call: Any, name: str, value: Any) -> bool:
    return type(call) is tuple and call[0] == name and call[1] == value and (len(call) < 3 or call[2] < _MAX_TIMES)


def _entry(call: Any) -> Any:
    """A call as it is recorded; None for what a program put there itself."""
    if type(call) is not tuple or not 2 <= len(call) <= 3 or type(call[0]) is not str:
        return None
    value = call[1]
    if type(value) not in _PLAIN:
        return None
    if type(value) is int and not -_MAX_SAFE_INTEGER <= value <= _MAX_SAFE_INTEGER:
        value = str(value)
    return [call[0], value, *call[2:3]]
