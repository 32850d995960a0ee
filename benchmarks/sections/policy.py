# SPDX-License-Identifier: MIT
"""What a policy costs: effects under the guard and their records, starts of programs before the exec judge."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.agent_command import AGENTBOX, OLD_NAME, Project, old_command_or_none
from benchmarks.guest_effects import EFFECTS
from benchmarks.pairs import Pair, compared
from benchmarks.report import Row, Section
from benchmarks.sections import Options

TITLE = "Effects under a policy"
NOTE = (
    "Microseconds of one effect in a program under `agentbox run`. A record counts the processor's time in the program "
    "and on the host. What a guard records is asked for by raising its audit event alone."
)
GUARDED = [*AGENTBOX, "run", "-p", "agentbox.policy", "--"]
UNJUDGED = [sys.executable, "-m", "benchmarks.unjudged", "run", "-p", "agentbox.policy", "--"]


def measure(options: Options) -> Section:
    """All pairs, interleaved."""
    old = old_command_or_none()
    with tempfile.TemporaryDirectory(prefix="agentbox-bench-policy-") as directory:
        pairs = list(_pairs(Project(Path(directory)), old, 4 if options.quick else 1))
        rows = compared(pairs, options.rounds_or(10, 1), warm_up=not options.quick)
    if not old:
        rows.append(Row(f"records, beside {OLD_NAME}", missing=f"{OLD_NAME} is not installed"))
    return Section("policy", TITLE, "", tuple(rows), (NOTE,))


def _pairs(project: Project, old: list[str], less: int) -> Iterator[Pair]:
    reads, starts = 4000 // less, 300 // less
    # More of ours, so that the start of the command is small beside them.
    records, our_records = 3000 // less, 12000 // less
    by_old = [*old, "run", "-p", "old.policy", "-t", "old.jsonl", "--"]
    for clock, processor in (("wall clock", False), ("processor", True)):

        def reading(by: list[str], processor: bool = processor) -> float:
            return project.inside(by, "read", reads, processor=processor)

        case = f"guarded open().read(), {clock}"
        yield Pair(case, "us", partial(reading, GUARDED), partial(reading, []), "bare", "<= 2.5")
        if old:
            case = f"{OLD_NAME} open().read(), {clock}"
            yield Pair(case, "us", partial(reading, by_old), partial(reading, []), "bare", rival=True)
    for effect in [name for name in EFFECTS if name.startswith("record ")] if old else ():
        ours = partial(project.end_to_end, GUARDED, effect, our_records, host=True)
        # The old runtime records inside alone.
        theirs = partial(project.end_to_end, by_old, effect, records, host=False)

        # A start waits for the host's answer: nothing runs that is not recorded. The others are one-way.
        bound = "" if effect == "record of a start" else "<= 0.5"
        yield Pair(effect, "us", ours, theirs, OLD_NAME, bound)

    def starting(by: list[str]) -> float:
        return project.inside(by, "spawn", starts)

    case = "start of a program, judged, wall clock"
    yield Pair(case, "us", partial(starting, GUARDED), partial(starting, UNJUDGED), "unjudged", "<= 1.6")
