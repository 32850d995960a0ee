# SPDX-License-Identifier: MIT
"""What the numbers are meant to be, and whether they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from benchmarks.processes import BASELINE
from benchmarks.report import Row, Section, number
from benchmarks.sections import checkpoints, idle, load, replays, runs, served, states


@dataclass(frozen=True, slots=True)
class Wanted:
    """A bound on the median of a row's `part`: its ratio or its value."""

    what: str
    section: str
    case: str
    part: Literal["ratio", "value"]
    most: bool
    bound: float
    unit: str = ""

    @property
    def text(self) -> str:
        """The bound as one reads it."""
        return f"{'<=' if self.most else '>='} {self.bound:.2f}{self.unit}"


WANTED = (
    Wanted(f"warm run by the Python API, idle gaps, p50, to {BASELINE}", "runs", runs.PYTHON_WARM, "ratio", True, 0.15),
    Wanted(f"on demand, p50, to {BASELINE}", "runs", runs.PYTHON_ON_DEMAND, "ratio", True, 0.35),
    Wanted(f"POST /v1/run, connection kept, p50, to {BASELINE}", "runs", runs.HTTP_WARM, "ratio", True, 0.30),
    Wanted(f"the same with policy and trace, to {BASELINE}", "runs", runs.HTTP_POLICY, "ratio", True, 0.45),
    Wanted("p99 / p50 of POST /v1/run, 1 caller", "load", load.tail(1), "ratio", True, 6),
    Wanted(f"runs/s of POST /v1/run to {BASELINE}, 4 callers", "load", load.named(load.WARM, 4), "ratio", False, 3),
    Wanted("runs/s to agentbox-sandbox 0.8, 1 caller", "load", load.to_old(1), "ratio", False, 6),
    Wanted("runs/s to agentbox-sandbox 0.8, 4 callers", "load", load.to_old(4), "ratio", False, 4),
    Wanted("docker run --rm (runc) to POST /v1/run, p50", "runs", runs.DOCKER_TO_HTTP, "ratio", False, 80),
    Wanted(f"node, warm, p50, to {BASELINE}", "runs", runs.NODE_WARM, "ratio", True, 0.4),
    Wanted("replay of 10,000 steps to recording them", "replays", replays.named("a mixture"), "ratio", True, 1.0),
    Wanted("recording with frozen clocks to live ones", "replays", replays.FROZEN, "ratio", True, 1.3),
    Wanted("a checkpoint after one change, to snapback", "checkpoints", checkpoints.LATER, "ratio", True, 0.33),
    Wanted("the first checkpoint, to snapback", "checkpoints", checkpoints.FIRST, "ratio", True, 0.33),
    Wanted("command through the server to one of the process", "served", served.SERVED, "ratio", True, 1.5),
    Wanted("command through the server beside 100 idle boxes", "served", served.beside(100), "ratio", True, 1.3),
    Wanted("memory of the server for them", "served", served.memory(100), "value", True, 100, " MB"),
    Wanted("upload of 1 GB, time to that of docker cp", "served", served.UPLOAD, "ratio", True, 2.0),
    Wanted("fork of a sandbox with 100 MB to a copy of them", "states", states.FORK, "ratio", True, 0.2),
    Wanted("memory (PSS) of an idle warm Python box", "idle", idle.EACH_BOX, "value", True, 4, " MB"),
)

Verdict = Literal["reached", "not reached", "not measured"]


@dataclass(frozen=True, slots=True)
class Judged:
    """What came out for one Wanted: `median` None says that it was not measured, and `why`."""

    what: str
    bound: str
    verdict: Verdict
    median: float | None = None
    p10: float | None = None
    p90: float | None = None
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        """For json.dumps."""
        return asdict(self)


def judge(sections: Sequence[Section], wanted: Sequence[Wanted] = WANTED) -> list[Judged]:
    """A verdict on each; on the median, whatever its spread."""
    by_name = {section.name: section for section in sections}
    return [_judged(one, by_name.get(one.section)) for one in wanted]


def _judged(wanted: Wanted, section: Section | None) -> Judged:
    row = section.row(wanted.case) if section else None
    if row is None or row.missing or row.failed:
        return Judged(wanted.what, wanted.text, "not measured", why=_why(wanted, section, row))
    found = row.ratio if wanted.part == "ratio" else row.value
    if found is None:
        return Judged(wanted.what, wanted.text, "not measured", why=f"the row has no {wanted.part}")
    reached = found.median <= wanted.bound if wanted.most else found.median >= wanted.bound
    verdict: Verdict = "reached" if reached else "not reached"
    return Judged(wanted.what, wanted.text, verdict, found.median, found.p10, found.p90)


def _why(wanted: Wanted, section: Section | None, row: Row | None) -> str:
    if section is None:
        return "not chosen"
    if row is None:
        return "its section failed" if section.failed else f"no row {wanted.case!r}"
    return row.missing or f"failed: {row.failed}"


def markdown(verdicts: Sequence[Judged]) -> str:
    """The verdicts as a table."""
    lines = ["## What is wanted", "", "| what | wanted | median | p10 to p90 | |", "|---|---|---|---|---|"]
    for one in verdicts:
        if one.median is None or one.p10 is None or one.p90 is None:
            cells = [one.what, one.bound, "", "", f"not measured: {one.why}"]
        else:
            spread = "" if one.p10 == one.p90 else f"{number(one.p10)} to {number(one.p90)}"
            cells = [one.what, one.bound, number(one.median), spread, one.verdict]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
