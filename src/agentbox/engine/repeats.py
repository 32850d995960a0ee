# SPDX-License-Identifier: MIT
"""Denials as the trace tells them: equal ones are counted, and recorded in ever larger steps.

A guest decides how often it tries what is refused, and a record for each try would let it fill the trace until that
ends the run. The count is kept on the host, whoever reports: guards, the exec judge, or counting. What the gateway
decides comes counted already (`egress/events.py`), in the same steps.
"""

from __future__ import annotations

from agentbox.trace.record import KINDS
from agentbox.trace.storable import args_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from agentbox.trace.record import Kind, Origin

    # Kind, operation, arguments, origin, process, lane; the index of the record, None when it could not be written.
    Append = Callable[[Kind, str, dict[str, Any], Origin, int | None, str | None], int | None]

MAX_TOLD_APART = 2048
# Of the text of what is told apart: a guest may send 64 KiB with each.
MAX_TOLD_APART_BYTES = 1 << 20
_STEP = 10
_COUNT = "count"


class Repeat:
    """Things that are equal but for their process and lane, which are those of the latest."""

    # Made for each kind of denial, and looked at for each denial.
    __slots__ = ("args", "kind", "lane", "next_step", "op", "origin", "pid", "seen", "untold")

    def __init__(self, kind: Kind, op: str, origin: Origin) -> None:
        self.kind = kind
        self.op = op
        self.origin = origin
        self.args: dict[str, Any] = {}
        self.pid: int | None = None
        self.lane: str | None = None
        self.seen = 0
        self.untold = 0
        self.next_step = 1


class Repeats:
    """Records what is new with `append`, and what is equal at the 10th, the 100th, the 1000th time: `count` in the
    arguments is then how many came since the record before. `flush` records what is left.

    What differs from `MAX_TOLD_APART` others counts as one more kind of its operation, whose records show the latest.
    A `count` that somebody else put into the arguments is left out. `unrecorded` is, by kind, how many things no record
    of their own tells.
    """

    def __init__(self, append: Append) -> None:
        self._append = append
        self._kinds: dict[tuple[str, str, str, str], Repeat] = {}
        self._bytes = 0
        self.unrecorded = dict.fromkeys(KINDS, 0)

    def kind_of(self, kind: Kind, op: str, args: dict[str, Any], origin: Origin) -> Repeat:
        """What `again` counts such a thing with."""
        args = _without_count(args)
        text = args_text(args)
        found = self._kinds.get((kind, op, origin, text))
        if found is not None:
            return found
        if len(self._kinds) >= MAX_TOLD_APART or self._bytes + len(text) > MAX_TOLD_APART_BYTES:
            # Arguments are an object, so no text of theirs is empty.
            text = ""
            found = self._kinds.get((kind, op, origin, text))
        if found is None:
            found = self._kinds[kind, op, origin, text] = Repeat(kind, op, origin)
            self._bytes += len(text)
        return found

    def again(self, repeat: Repeat, args: dict[str, Any], pid: int | None, lane: str | None) -> int | None:
        """Count it once more; the index of its record if that is the first of its kind."""
        repeat.args = args
        repeat.pid = pid
        repeat.lane = lane
        repeat.seen += 1
        repeat.untold += 1
        if repeat.seen < repeat.next_step:
            self.unrecorded[repeat.kind] += 1
            return None
        repeat.next_step *= _STEP
        index = self._tell(repeat)
        return index if repeat.seen == 1 else None

    def add(
        self, kind: Kind, op: str, args: dict[str, Any], origin: Origin, pid: int | None, lane: str | None = None
    ) -> int | None:
        """Both in one."""
        return self.again(self.kind_of(kind, op, args, origin), args, pid, lane)

    def flush(self) -> None:
        """Record everything that was counted since it was last recorded."""
        for repeat in self._kinds.values():
            if repeat.untold:
                self.unrecorded[repeat.kind] -= 1
                self._tell(repeat)

    def _tell(self, repeat: Repeat) -> int | None:
        args = _without_count(repeat.args)
        if repeat.untold > 1:
            args = {**args, _COUNT: repeat.untold}
        repeat.untold = 0
        return self._append(repeat.kind, repeat.op, args, repeat.origin, repeat.pid, repeat.lane)


def _without_count(args: dict[str, Any]) -> dict[str, Any]:
    if _COUNT not in args:
        return args
    return {name: value for name, value in args.items() if name != _COUNT}
