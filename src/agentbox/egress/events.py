# SPDX-License-Identifier: MIT
"""What the gateway tells of itself: one event for a decision or a finished connection.

An event becomes a record of the trace, and a denial the object that an agent reads: the same one in an HTTP answer, in
a DNS answer and in the result. A guest decides how often it asks, so equal events are counted and told in ever larger
steps (`Repeats`): the trace grows with the logarithm of a flood, and the counts still add up.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

MAX_TOLD_APART = 512
_STEP = 10


@dataclass(frozen=True, slots=True)
class EgressEvent:
    """One decision or one finished connection.

    `op` is `net.resolve`, `net.connect`, `net.request`, `net.close`, `net.dropped` or `net.unix`. `host` is the name
    that was asked for (by DNS: in lower case), or the literal address; bytes that no name has stand as `\\DDD`.
    `address` is what was connected to. `rule` is the text of the deciding rule, `rule_missing` a `net:` rule that would
    allow it. `method` and `path` are those of an HTTP request, the path without its query, which may hold secrets.
    `count` is how many equal events this one stands for.
    """

    op: str
    host: str
    allowed: bool
    port: int | None = None
    address: str | None = None
    rule: str | None = None
    rule_missing: str | None = None
    reason: str = ""
    hint: str = ""
    bytes_up: int = 0
    bytes_down: int = 0
    method: str | None = None
    path: str | None = None
    count: int = 1

    def refusal(self) -> dict[str, str | bool | None]:
        """What an agent is told of a denial."""
        return refusal(self.host, self.rule_missing, self.hint)


OnEvent = Callable[[EgressEvent], None]


def refusal(host: str, rule_missing: str | None, hint: str) -> dict[str, str | bool | None]:
    """The object of a denial; `retry` is false, as asking again changes nothing."""
    return {"error": "policy_denied", "host": host, "rule_missing": rule_missing, "hint": hint, "retry": False}


class Repeats:
    """Hands events on, equal ones in steps: the 1st, the 10th, the 100th, each with the number since the last one.

    At most `limit` kinds are told apart; what is different from all of them is counted as one more kind of its
    operation, each event told being the latest of them. `flush` hands on what was counted and not yet told.
    """

    def __init__(self, on_event: OnEvent, limit: int = MAX_TOLD_APART) -> None:
        self._on_event = on_event
        self._limit = limit
        self._kinds: dict[Hashable, _Kind] = {}

    def __call__(self, event: EgressEvent) -> None:
        """Count an event and hand it on when its step has come."""
        key: Hashable = replace(event, bytes_up=0, bytes_down=0, count=1)
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= self._limit:
                key = (event.op, event.allowed)
                kind = self._kinds.get(key)
            if kind is None:
                kind = self._kinds[key] = _Kind(event)
        kind.latest = event
        kind.seen += event.count
        kind.untold += event.count
        kind.bytes_up += event.bytes_up
        kind.bytes_down += event.bytes_down
        if kind.seen >= kind.next_step:
            while kind.next_step <= kind.seen:
                kind.next_step *= _STEP
            self._tell(kind)

    def flush(self) -> None:
        """Hand on everything that was counted since it was last told. To be called when the box ends."""
        for kind in self._kinds.values():
            if kind.untold:
                self._tell(kind)

    def _tell(self, kind: _Kind) -> None:
        event = replace(kind.latest, count=kind.untold, bytes_up=kind.bytes_up, bytes_down=kind.bytes_down)
        kind.untold = kind.bytes_up = kind.bytes_down = 0
        self._on_event(event)


class _Kind:
    """Events that are equal but for their bytes."""

    __slots__ = ("bytes_down", "bytes_up", "latest", "next_step", "seen", "untold")

    def __init__(self, latest: EgressEvent) -> None:
        self.latest = latest
        self.seen = 0
        self.untold = 0
        self.next_step = 1
        self.bytes_up = 0
        self.bytes_down = 0
