# SPDX-License-Identifier: MIT
"""`python -m benchmarks.policy [--rounds N] [--only TEXT] [--json FILE]`: what a policy and its trace cost.

Every round runs each case once, in a random order; a ratio is taken within a round, so that a busy moment hits both of
its sides, and the table has medians of ratios with their spread. Rows that need the old runtime are left out unless
AGENTBOX_BENCH_S3_PYTHON names its Python.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.guest_effects import EFFECTS, FILES
from benchmarks.traces import write_old, write_ours
from tests.running_server import clean_environment

PYTHON = "/usr/bin/python3"
_SCRIPT = Path(sys.executable).with_name("agentbox")
AGENTBOX = [str(_SCRIPT)] if _SCRIPT.is_file() else [sys.executable, "-m", "agentbox.cli.main"]
_HERE = Path(__file__).parent
_POLICY = "read: ./data\nexec: /bin/true\nexec: /usr/bin/python3\nnet: localhost\nenv: PATH\n"
READS, SPAWNS = 4000, 300
# More of ours, so that the start of the command is small beside them.
RECORDS, OUR_RECORDS = 3000, 12000


@dataclass(frozen=True, slots=True)
class Ratio:
    """One row: the median of the ratios of all rounds, their 10th and 90th percentile, and what is aimed at."""

    case: str
    median: float
    p10: float
    p90: float
    target: str
    ours: float
    other: float
    unit: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Two measurements of the same thing; the ratio is `ours / other`."""

    case: str
    target: str
    unit: str
    ours: Callable[[], float]
    other: Callable[[], float]


class Place:
    """A project with a policy, and the commands that run there."""

    def __init__(self, directory: Path, old_python: str) -> None:
        self.directory = directory
        self.old = str(Path(old_python).parent / "agentbox") if old_python else ""
        # A user's modules are compiled; an installed command starts without what `-m` adds.
        self._environment = clean_environment({"AGENTBOX_STATE_DIR": str(directory / "state"), "PATH": "/usr/bin:/bin"})
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        project = self.project = directory / "project"
        (project / "data").mkdir(parents=True)
        for number in range(FILES):
            (project / f"data/{number}.txt").write_text("hello\n")
        (project / "agentbox.policy").write_text(_POLICY.replace("net: localhost\n", ""))
        (project / "old.policy").write_text(_POLICY)
        (project / "effects.py").write_text((_HERE / "guest_effects.py").read_text())

    def bare(self) -> list[str]:
        return []

    def guarded(self) -> list[str]:
        return [*AGENTBOX, "run", "-p", "agentbox.policy", "--"]

    def unjudged(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.unjudged", "run", "-p", "agentbox.policy", "--"]

    def by_old(self) -> list[str]:
        return [self.old, "run", "-p", "old.policy", "-t", "old.jsonl", "--"]

    def execute(self, command: list[str]) -> tuple[str, float, int]:
        """Standard output, processor seconds of the command and all it started, and its peak memory in KiB."""
        environment = {**self._environment, "PYTHONPATH": f"{_HERE.parent}"} if "-m" in command else self._environment
        with subprocess.Popen(
            command, cwd=self.project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            text = process.stdout.read()
            problem = process.stderr.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{command} ended with {process.returncode}: {problem or text}")
        return text, usage.ru_utime + usage.ru_stime, usage.ru_maxrss

    def inside(self, by: list[str], effect: str, count: int, *, processor: bool = False) -> float:
        """Microseconds of one effect as the program inside saw it."""
        isolated = ["-I", "-S"] if effect == "spawn" else []
        text, _, _ = self.execute([*by, PYTHON, *isolated, "effects.py", effect, str(count)])
        return float(text.split()[1 if processor else 0])

    def end_to_end(self, by: list[str], effect: str, count: int) -> float:
        """Processor microseconds of one effect, in the program and on the host together. What runs in a box is counted
        inside, since the command does not wait for it as its child; the old runtime records inside alone."""
        text, with_effects, _ = self.execute([*by, PYTHON, "effects.py", effect, str(count)])
        in_guest = float(text.split()[1])
        if self.old in by:
            return in_guest
        _, without, _ = self.execute([*by, PYTHON, "effects.py", effect, "0"])
        return in_guest + max(0.0, with_effects - without) * 1e6 / count

    def verifies(self, agentbox: list[str], trace: str, records: int) -> float:
        """Processor microseconds for a record, the start of the command included."""
        text, seconds, _ = self.execute([*agentbox, "verify", "-t", trace])
        assert "trace ok" in text, text
        return seconds * 1e6 / records


def pairs(place: Place, records: list[int]) -> Iterator[Pair]:
    """The rows."""
    for name, by_processor in (("wall clock", False), ("processor", True)):

        def reading(by: list[str], by_processor: bool = by_processor) -> float:
            return place.inside(by, "read", READS, processor=by_processor)

        case = f"guarded open().read() to bare, {name}"
        yield Pair(case, "<= 2.5", "us", lambda f=reading: f(place.guarded()), lambda f=reading: f(place.bare()))
        if place.old:
            case = f"agentbox-runtime 0.3 open().read() to bare, {name}"
            yield Pair(case, "", "us", lambda f=reading: f(place.by_old()), lambda f=reading: f(place.bare()))
    if place.old:
        for effect in [name for name in EFFECTS if name.startswith("record ")]:

            def recording(by: list[str], effect: str = effect) -> float:
                return place.end_to_end(by, effect, RECORDS if place.old in by else OUR_RECORDS)

            case = f"{effect}, guest and host, to agentbox-runtime 0.3"
            # A start waits for the host's answer: nothing runs that is not recorded. The others are one-way.
            aim = "" if effect == "record of a start" else "<= 0.5"
            yield Pair(case, aim, "us", lambda f=recording: f(place.guarded()), lambda f=recording: f(place.by_old()))

    def spawning(by: list[str]) -> float:
        return place.inside(by, "spawn", SPAWNS)

    case = "start of a program, judged to unjudged, wall clock"
    yield Pair(case, "<= 1.6", "us", lambda: spawning(place.guarded()), lambda: spawning(place.unjudged()))
    for count in records if place.old else ():
        ours, old = f"{count}.jsonl", f"{count}.old.jsonl"
        write_ours(place.project / ours, place.directory, count)
        write_old(place.project / old, count)
        yield Pair(
            f"verify {count} records, start included, to agentbox-runtime 0.3",
            "<= 0.2",
            "us",
            lambda name=ours, count=count: place.verifies(AGENTBOX, name, count),
            lambda name=old, count=count: place.verifies([place.old], name, count),
        )


def measure(chosen: list[Pair], rounds: int, seed: int = 1) -> list[Ratio]:
    """All pairs, interleaved; the first round is thrown away."""
    shuffle = random.Random(seed).shuffle
    found: dict[str, list[tuple[float, float]]] = {pair.case: [] for pair in chosen}
    order = list(chosen)
    for number in range(rounds + 1):
        shuffle(order)
        for pair in order:
            sides = [pair.ours, pair.other] if number % 2 else [pair.other, pair.ours]
            values = [side() for side in sides]
            if number:
                found[pair.case].append((values[0], values[1]) if number % 2 else (values[1], values[0]))
    return [_ratio(pair, found[pair.case]) for pair in chosen]


def _ratio(pair: Pair, values: list[tuple[float, float]]) -> Ratio:
    ratios = [ours / other for ours, other in values]
    deciles = statistics.quantiles(ratios, n=10, method="inclusive") if len(ratios) > 1 else ratios * 9
    return Ratio(
        pair.case,
        statistics.median(ratios),
        deciles[0],
        deciles[8],
        pair.target,
        statistics.median(ours for ours, _ in values),
        statistics.median(other for _, other in values),
        pair.unit,
    )


def table(rows: list[Ratio]) -> str:
    """The rows as a Markdown table."""
    lines = ["| case | ratio | p10 to p90 | aim | agentbox | other |", "|---|---|---|---|---|---|"]
    for row in rows:
        values = f"{row.ours:.1f} {row.unit} | {row.other:.1f} {row.unit}"
        lines.append(f"| {row.case} | {row.median:.2f} | {row.p10:.2f} to {row.p90:.2f} | {row.target} | {values} |")
    return "\n".join(lines)


@contextmanager
def _place() -> Iterator[Place]:
    python = os.environ.get("AGENTBOX_BENCH_S3_PYTHON", "")
    with tempfile.TemporaryDirectory(prefix="agentbox-bench-policy-") as directory:
        yield Place(Path(directory), python if Path(python).is_file() else "")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time what a policy and its trace cost, interleaved.")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of all cases (default 10)")
    parser.add_argument("--records", default="10000,100000", help="lengths of the traces that are verified")
    parser.add_argument(
        "--json", type=Path, default=Path("build/bench-policy.json"), help="where the numbers go as JSON"
    )
    parser.add_argument("--only", default="", help="measure only cases whose name contains this")
    options = parser.parse_args()
    with _place() as place:
        chosen = [p for p in pairs(place, list(map(int, options.records.split(",")))) if options.only in p.case]
        rows = measure(chosen, options.rounds)
    print(table(rows))
    report = {
        "host": {"kernel": platform.release(), "machine": platform.machine(), "cpus": os.cpu_count()},
        "load_average": os.getloadavg(),
        "rounds": options.rounds,
        "cases": {row.case: asdict(row) for row in rows},
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
