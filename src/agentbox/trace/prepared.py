# SPDX-License-Identifier: MIT
"""A record before it has its place in a trace: everything about it that costs time is done, once for as often as it is
written."""

from __future__ import annotations

from agentbox.trace import record
from agentbox.trace.storable import args_text, result_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbox.trace.record import Kind, Origin

_MAX_NAME_CHARACTERS = 200


class Prepared:
    """A record but for its place and time; `parts` are those of `record.spelled`. Nobody changes it."""

    # Made for each record that does not repeat, so it is made as cheaply as can be.
    __slots__ = ("is_end", "kind", "parts")

    def __init__(self, kind: str, is_end: bool, parts: tuple[str, str, str]) -> None:
        self.kind = kind
        self.is_end = is_end
        self.parts = parts


def prepared(
    kind: Kind,
    op: str,
    args: Any,
    *,
    result: Any = None,
    origin: Origin = "supervisor",
    pid: int | None = None,
    lane: str | None = None,
) -> Prepared:
    """A record for `TraceWriter.add`. Whatever `args` and `result` are, it is one line."""
    parts = record.spelled(
        kind,
        _name(op),
        args_text(args),
        result=None if result is None else result_text(result),
        origin=origin,
        pid=pid,
        lane=None if lane is None else _name(lane),
    )
    return Prepared(kind, op == record.RUN_END, parts)


def _name(text: str) -> str:
    """An operation or lane as a guest may have spelled it: short and without half characters."""
    if text.isascii() and len(text) <= _MAX_NAME_CHARACTERS:
        return text
    return text[:_MAX_NAME_CHARACTERS].encode("utf-8", "backslashreplace").decode("utf-8")
