# SPDX-License-Identifier: MIT
"""Interleaved timing: every round runs every case once, in a random order, so that a busy moment hits all alike."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """Something to time. `runs` is how many executions one call makes; the time of a call is divided by it."""

    call: Callable[[], None]
    runs: float = 1


@dataclass(frozen=True, slots=True)
class Row:
    """Milliseconds per execution: median, 10th and 90th percentile; `ratio` of medians to the baseline's."""

    case: str
    median_ms: float
    p10_ms: float
    p90_ms: float
    ratio: float
    rounds: int


def measure(cases: Mapping[str, Case], baseline: str, rounds: int, seed: int = 1) -> list[Row]:
    """Time all cases in `rounds` rounds after one round that is thrown away. A failing case ends the measurement."""
    order = list(cases)
    shuffle = random.Random(seed).shuffle
    times: dict[str, list[float]] = {name: [] for name in cases}
    for round_number in range(rounds + 1):
        progress(f"round {round_number} of {rounds}")
        shuffle(order)
        for name in order:
            begin = time.perf_counter()
            cases[name].call()
            elapsed = (time.perf_counter() - begin) * 1000 / cases[name].runs
            if round_number:
                times[name].append(elapsed)
    progress("")
    base = statistics.median(times[baseline])
    return [_row(name, values, base) for name, values in times.items()]


def _row(name: str, values: list[float], base: float) -> Row:
    median = statistics.median(values)
    deciles = statistics.quantiles(values, n=10, method="inclusive")
    return Row(name, median, deciles[0], deciles[8], median / base, len(values))


def table(rows: list[Row], baseline: str) -> str:
    """The rows as a Markdown table."""
    lines = [f"| case | ms per run | p10 to p90 | ratio to {baseline} |", "|---|---|---|---|"]
    lines += [f"| {r.case} | {r.median_ms:.2f} | {r.p10_ms:.2f} to {r.p90_ms:.2f} | {r.ratio:.2f} |" for r in rows]
    return "\n".join(lines)


def progress(text: str) -> None:
    """Rewrite one line on stderr, where that is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()
