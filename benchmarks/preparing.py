# SPDX-License-Identifier: MIT
"""From a list of what is to be measured to cases that can be, and rows for those that cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from benchmarks.interleaved import NotHereError, progress, reason
from benchmarks.report import Row

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Wish(Generic[Made]):
    """A row that is wanted, and what makes its call. A thing of somebody else may be missing; `ours` must work."""

    name: str
    make: Callable[[], Made]
    ours: bool = False
    samples: int = 1


def prepared(wishes: Iterable[Wish[Made]]) -> tuple[list[tuple[Wish[Made], Made]], dict[str, Row]]:
    """What could be made, and by its name a row for each that could not."""
    made, without = [], {}
    for wish in wishes:
        progress(f"preparing {wish.name}")
        try:
            made.append((wish, wish.make()))
        except Exception as error:
            without[wish.name] = unmeasured(wish.name, reason(error), wish.ours and not isinstance(error, NotHereError))
    return made, without


def unmeasured(name: str, why: str, ours: bool) -> Row:
    """A row without numbers."""
    return Row(name, failed=why) if ours else Row(name, missing=why)
