# SPDX-License-Identifier: MIT
"""Two measurements of the same thing, one after the other, and the ratio of the first to the second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.interleaved import Case, interleave
from benchmarks.preparing import unmeasured
from benchmarks.report import Row
from benchmarks.spread import Spread, ratio_in_rounds


@dataclass(frozen=True, slots=True)
class Pair:
    """`wanted` is a bound on the ratio `ours / other`, `other_name` says what the other is. A `rival` may fail."""

    case: str
    unit: str
    ours: Callable[[], float]
    other: Callable[[], float]
    other_name: str
    wanted: str = ""
    rival: bool = False


def compared(pairs: Sequence[Pair], rounds: int, *, warm_up: bool = True) -> list[Row]:
    """A row for each pair; both sides of all pairs are interleaved."""
    cases = [Case(pair.case, _both(pair)) for pair in pairs]
    taken = interleave(cases, rounds, warm_up=warm_up)
    rows = []
    for pair in pairs:
        if pair.case in taken.failed:
            rows.append(unmeasured(pair.case, taken.failed[pair.case], not pair.rival))
            continue
        both = [one for values in taken.rounds[pair.case] for one in values]
        ours, other = [one[0] for one in both], [one[1] for one in both]
        ratio = ratio_in_rounds([[value] for value in ours], [[value] for value in other])
        named = {f"{pair.other_name}, {pair.unit}": Spread.of(other).median}
        rows.append(Row(pair.case, Spread.of(ours), pair.unit, ratio, pair.other_name, pair.wanted, extra=named))
    return rows


def _both(pair: Pair) -> Callable[[], tuple[float, float]]:
    turn = [0]

    def call() -> tuple[float, float]:
        turn[0] += 1
        if turn[0] % 2:
            ours = pair.ours()
            return ours, pair.other()
        other = pair.other()
        return pair.ours(), other

    return call
