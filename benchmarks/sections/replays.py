# SPDX-License-Identifier: MIT
"""What a replay takes beside the recording of the same steps, and what frozen clocks add to recording."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.agent_command import AGENTBOX, Project
from benchmarks.guest_steps import FILES, KINDS
from benchmarks.interleaved import progress
from benchmarks.pairs import Pair, compared
from benchmarks.processes import PYTHON
from benchmarks.report import Section
from benchmarks.sections import Options

TITLE = "Replays"
NOTE = (
    "From the start of the command to its end. Steps are those that a trace has; a mixture is a quarter each of four."
)
STEPS = 10_000
RECORDING = "recording it"
LIVE = "recording with live clocks"
FROZEN = "recording with frozen clocks, a mixture"
_POLICY = "read: ./data\nwrite: ./out\nenv: PATH\n"


def measure(options: Options) -> Section:
    """Every kind of step."""
    steps, rounds = STEPS // 10 if options.quick else STEPS, options.rounds_or(5, 1)
    with tempfile.TemporaryDirectory(prefix="agentbox-bench-replays-") as directory:
        project = Recorded(Path(directory), steps)
        rows = compared(list(_pairs(project, steps)), rounds, warm_up=not options.quick)
    return Section("replays", TITLE, "", tuple(rows), (NOTE,))


def named(kind: str, steps: int = STEPS) -> str:
    """The case of a kind of step."""
    return f"replay of {steps:,} steps: {kind}"


class Recorded:
    """A project in which steps of each kind were recorded once."""

    def __init__(self, directory: Path, steps: int) -> None:
        self._project = Project(directory)
        self._steps = str(steps)
        path = self._project.path
        for name in ("data", "out"):
            (path / name).mkdir(exist_ok=True)
            for number in range(FILES):
                (path / name / f"{number}.txt").write_text("hello\n")
        (path / "agentbox.policy").write_text(_POLICY)
        (path / "steps.py").write_text(Path(__file__).parent.with_name("guest_steps.py").read_text())
        for number, kind in enumerate(KINDS):
            progress(f"recording {steps} steps: {kind}")
            self.record(kind, "-t", self.trace(number))

    @staticmethod
    def trace(number: int) -> str:
        """The trace of a kind of step."""
        return f"kind{number}.jsonl"

    def record(self, kind: str, *options: str) -> float:
        """Record them once more; milliseconds."""
        return self._timed([*AGENTBOX, "run", "-q", *options, "--", PYTHON, "steps.py", kind, self._steps])

    def replay(self, number: int) -> float:
        """Replay them; milliseconds."""
        return self._timed([*AGENTBOX, "replay", "-q", "-t", self.trace(number)])

    def _timed(self, command: Sequence[str]) -> float:
        begin = time.perf_counter()
        self._project.execute(command)
        return (time.perf_counter() - begin) * 1e3


def _pairs(project: Recorded, steps: int) -> Iterator[Pair]:
    for number, kind in enumerate(KINDS):
        yield Pair(
            named(kind, steps),
            "ms",
            partial(project.replay, number),
            partial(project.record, kind),
            RECORDING,
            "<= 1",
        )
    mixture = "a mixture"
    yield Pair(
        FROZEN,
        "ms",
        partial(project.record, mixture),
        partial(project.record, mixture, "--live-clocks"),
        LIVE,
        "<= 1.3",
    )
