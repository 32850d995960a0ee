# SPDX-License-Identifier: MIT
"""Reading a trace record by record, without judging it: for `show`, exporters and replay."""

from __future__ import annotations

from agentbox.records import dataclass
from agentbox.trace import record
from agentbox.trace.canonical import NotCanonicalError
from agentbox.trace.lines import LineTooLongError, lines, opened
from agentbox.trace.record import Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line that is no record: its number, counted from 1, and why."""

    line: int
    reason: str


def read(path: str | Path) -> Iterator[Entry | Unreadable]:
    """Every line of a trace of either form, blank ones left out. Memory does not grow with the file.

    Raises TraceError when the file cannot be read.
    """
    number = 0
    with opened(path) as file:
        try:
            for line, ended in lines(file):
                number += 1
                if not line.strip():
                    continue
                try:
                    yield record.parse(line)
                except NotCanonicalError as error:
                    yield Unreadable(number, str(error) if ended else "the line has no end")
        except LineTooLongError:
            yield Unreadable(number + 1, "the line is longer than any that is written")
