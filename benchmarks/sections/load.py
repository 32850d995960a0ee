# SPDX-License-Identifier: MIT
"""Runs per second, and latencies, of callers that always have one run going: 1 of them and 4."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from benchmarks import rivals, ways
from benchmarks.closed_loops import Loop, looped
from benchmarks.interleaved import Case, Taken, interleave
from benchmarks.preparing import Wish, prepared, unmeasured
from benchmarks.processes import BASELINE, PROGRAM, PYTHON
from benchmarks.report import Row, Section
from benchmarks.sections import Options
from benchmarks.servers import Servers
from benchmarks.spread import Spread, ratio_in_rounds

TITLE = "Runs per second"
CALLERS = (1, 4)
REST_SECONDS = 0.3
WARM = "agentbox, POST /v1/run, warm"
POLICY = f"{WARM}, policy and trace"
ON_DEMAND = "agentbox, POST /v1/run, on demand"
COLD = "agentbox, POST /v1/run, cold"
OLD = "agentbox-sandbox 0.8, subprocess"
NEEDS = "needs rows that were not measured"
NOTE = (
    "Each caller asks for its next run when the last has ended, on a connection that is kept open; the client is a "
    "process of its own that uses sockets alone, on the same processors, the same for both services. Ratios are to "
    f"{BASELINE} by as many callers."
)


def named(case: str, callers: int) -> str:
    """The row of a case with so many callers."""
    return f"{case}, {callers} caller{'s' if callers > 1 else ''}"


def tail(callers: int) -> str:
    """The row that compares the 99th percentile to the median."""
    return f"{named(WARM, callers)}, p99 / p50"


def to_old(callers: int) -> str:
    """The row that compares with the old service."""
    return f"{named(WARM, callers)}, to {OLD}"


def measure(options: Options) -> Section:
    """Slices of a second or two, interleaved."""
    seconds = 0.4 if options.quick else 2.0
    with ExitStack() as stack:
        wishes = list(_wishes(Servers(stack)))
        made, without = prepared(wishes)
        cases = [
            Case(named(wish.name, callers), _call(order, callers, seconds), rest_seconds=REST_SECONDS)
            for wish, order in made
            for callers in CALLERS
        ]
        taken = interleave(cases, options.rounds_or(6, 1), warm_up=not options.quick)
    rows = []
    for wish in wishes:
        for callers in CALLERS:
            name = named(wish.name, callers)
            if wish.name in without:
                rows.append(replace(without[wish.name], case=name))
            elif name in taken.failed:
                rows.append(unmeasured(name, taken.failed[name], wish.ours))
            else:
                rows.append(_row(name, callers, taken))
    compared = [_compared(callers, taken) for callers in CALLERS]
    rows += [row for pair in compared for row in pair]
    return Section("load", TITLE, f"{BASELINE}, as many callers", tuple(rows), (NOTE,))


def _compared(callers: int, taken: Taken[Loop]) -> tuple[Row, Row]:
    warm, old = named(WARM, callers), named(OLD, callers)
    tails, beside = Row(tail(callers), missing=NEEDS), Row(to_old(callers), missing=NEEDS)
    if warm in taken.rounds:
        slices = [loop.p99_ms / loop.p50_ms for loops in taken.rounds[warm] for loop in loops]
        tails = Row(tail(callers), ratio=Spread.of(slices), against="p50")
    if warm in taken.rounds and old in taken.rounds:
        ratio = ratio_in_rounds(_rates(taken, warm), _rates(taken, old))
        beside = Row(to_old(callers), ratio=ratio, against=OLD)
    return tails, beside


def _row(name: str, callers: int, taken: Taken[Loop]) -> Row:
    base = named(BASELINE, callers)
    loops = [loop for loops in taken.rounds[name] for loop in loops]
    rates = _rates(taken, name)
    warm = sum(loop.warm or 0 for loop in loops) * 100 / sum(loop.runs for loop in loops)
    return Row(
        name,
        Spread.of_rounds(rates),
        "runs/s",
        ratio_in_rounds(rates, _rates(taken, base)),
        extra={
            "p50 ms": Spread.of([loop.p50_ms for loop in loops]).median,
            "p99 ms": Spread.of([loop.p99_ms for loop in loops]).median,
            "worst ms": max(loop.worst_ms for loop in loops),
            **({} if loops[0].warm is None else {"% warm": warm}),
        },
    )


def _rates(taken: Taken[Loop], name: str) -> list[list[float]]:
    return [[loop.rate for loop in loops] for loops in taken.rounds[name]]


def _call(order: dict[str, Any], callers: int, seconds: float) -> Callable[[], Loop]:
    return lambda: looped({**order, "callers": callers, "seconds": seconds})


def _wishes(servers: Servers) -> Iterator[Wish[dict[str, Any]]]:
    yield Wish(BASELINE, lambda: {"argv": [PYTHON, "-c", PROGRAM]}, True)
    yield Wish(WARM, lambda: {"url": servers.warm(), "body": ways.BODY}, True)
    yield Wish(POLICY, lambda: {"url": servers.warm(), "body": ways.POLICY_BODY}, True)
    yield Wish(ON_DEMAND, lambda: {"url": servers.on_demand(), "body": ways.BODY}, True)
    yield Wish(COLD, lambda: {"url": servers.cold(), "body": ways.BODY}, True)
    yield Wish("bwrap --unshare-all, python3 -c", lambda: {"argv": rivals.bubblewrap_words()})
    yield Wish(OLD, lambda: {"url": servers.old(), "body": ways.BODY})
    yield Wish("agentbox-sandbox 0.8, docker", lambda: {"url": servers.old_with_docker(), "body": ways.BODY})
