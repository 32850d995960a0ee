# SPDX-License-Identifier: MIT
"""Medians, percentiles and ratios of measured values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, 10th and 90th percentile of `samples` values, all in one unit."""

    median: float
    p10: float
    p90: float
    samples: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value; ValueError without any."""
        return cls(statistics.median(values), percentile(values, 10), percentile(values, 90), len(values))

    @classmethod
    def of_rounds(cls, rounds: Sequence[Sequence[float]]) -> Spread:
        """Of every value of every round."""
        return cls.of([value for values in rounds for value in values])


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie, by linear interpolation; ValueError without any value."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def ratio_in_rounds(rounds: Sequence[Sequence[float]], base: Sequence[Sequence[float]]) -> Spread:
    """Of the ratios of each round's median to the median of the same round of `base`.

    Ratios are taken inside a round so that a busy moment hits both sides. ValueError when the rounds differ in number.
    """
    return Spread.of(
        [statistics.median(mine) / statistics.median(theirs) for mine, theirs in zip(rounds, base, strict=True)]
    )
