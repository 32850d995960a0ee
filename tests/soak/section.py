# SPDX-License-Identifier: MIT
"""A part of the soak: something that is done many times, and what was found."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_MOST_FAULTS = 50


@dataclass(frozen=True)
class Options:
    """How much is done, from which seed. `size` is the part of a whole soak: 1 is all of it. `place` is an empty
    directory for what a section needs. `backends` are those that may be used."""

    seed: int
    size: float
    place: Path
    backends: tuple[str, ...]

    def of(self, whole: int) -> int:
        """So much of `whole`, 1 at least."""
        return max(1, round(whole * self.size))


@dataclass
class Found:
    """What a section did (`counts`), and what was wrong (`faults`)."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def fault(self, text: str) -> None:
        """Something that must not be."""
        self.counts["faults"] += 1
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append(text)


@dataclass(frozen=True)
class Section:
    """One part: its name, what it does in a line, and how."""

    name: str
    what: str
    work: Callable[[Options, Found], None]

    def run(self, options: Options) -> Found:
        """Do it. Raises what the work raises that is no finding of its own."""
        found = Found(self.name)
        began = time.monotonic()
        self.work(options, found)
        found.seconds = round(time.monotonic() - began, 1)
        return found
