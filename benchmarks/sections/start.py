# SPDX-License-Identifier: MIT
"""`python -m benchmarks.start [--rounds N] [--json FILE] [--agentbox PATH]`: what `agentbox run` adds to a start.

Every round runs every case once, in a random order. Wall-clock time is what a user waits, and depends on what else the
machine does; processor time is of the whole family of processes, and depends on it less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.measure import progress
from tests.running_server import clean_environment

PYTHON = "/usr/bin/python3"
BASELINES = {"python": "bare python -c pass", "true": "/bin/true"}
POLICY = "read: ./src\nwrite: ./out\nexec: git status\nenv: LANG\n"
FIRST = "agentbox run -- python -c pass"
NEWER = f"{FIRST}, console script of a newer pip"
REPOSITORY = Path(__file__).parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the start of commands under agentbox run, interleaved.")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of all cases (default 30)")
    parser.add_argument("--json", type=Path, default=Path("build/start.json"), help="where the numbers go as JSON")
    parser.add_argument("--agentbox", type=Path, help="an installed agentbox; default: a new venv of /usr/bin/python3")
    options = parser.parse_args()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentbox-bench-start-")))
        command = options.agentbox or _installed(place / "venv")
        cases = _cases(place, command)
        if options.agentbox is None and (newer := _installed_newer(place / "newer")) is not None:
            cases[NEWER] = [str(newer), *cases[FIRST][1:]]
        rows = _measured(cases, place, options.rounds)
    print(_table(rows))
    report = {
        "host": {"kernel": platform.release(), "machine": platform.machine(), "cpus": os.cpu_count()},
        "load_average": os.getloadavg(),
        "cases": rows,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"\nratios and spreads: {options.json}")


def _installed(venv: Path) -> Path:
    """Install this checkout as a user would, with its modules compiled."""
    subprocess.run([PYTHON, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin" / "pip", "install", "--quiet", REPOSITORY], check=True)
    return venv / "bin" / "agentbox"


def _installed_newer(venv: Path) -> Path | None:
    """The same by the newest pip, whose scripts import less; None where there is none to be had."""
    made = subprocess.run([PYTHON, "-m", "venv", "--upgrade-deps", venv], check=False, capture_output=True)
    if made.returncode:
        return None
    subprocess.run([venv / "bin" / "pip", "install", "--quiet", REPOSITORY], check=True)
    return venv / "bin" / "agentbox"


def _cases(place: Path, command: Path) -> dict[str, list[str]]:
    (place / "src").mkdir()
    (place / "out").mkdir()
    (place / "rules").write_text(POLICY, encoding="utf-8")
    (place / "empty").write_text("# nothing is allowed\n", encoding="utf-8")
    python = [PYTHON, "-c", "pass"]
    run = [str(command), "run", "-q", "-p"]
    found = {
        BASELINES["python"]: python,
        BASELINES["true"]: ["/bin/true"],
        FIRST: [*run, "rules", "--", *python],
        "agentbox run -- python -c pass, an empty policy": [*run, "empty", "--", *python],
        "agentbox run -- true": [*run, "rules", "--", "/bin/true"],
        "agentbox run --help": [str(command), "run", "--help"],
        "agentbox --help": [str(command), "--help"],
    }
    old = os.environ.get("AGENTBOX_BENCH_S3_PYTHON", "")
    if old and Path(old).exists():
        found["agentbox-runtime 0.3 run -- python -c pass"] = [
            str(Path(old).parent / "agentbox"), "run", "-p", "rules", "--", *python
        ]  # fmt: skip
    return found


def _measured(cases: dict[str, list[str]], place: Path, rounds: int) -> dict[str, dict[str, float]]:
    environment = clean_environment({"AGENTBOX_STATE_DIR": str(place / "state")})
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    order, shuffle = list(cases), random.Random(1).shuffle
    for number in range(rounds + 1):
        progress(f"round {number} of {rounds}")
        shuffle(order)
        for name in order:
            before, begin = os.times(), time.perf_counter()
            subprocess.run(
                cases[name], cwd=place, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=True
            )
            wall, after = time.perf_counter() - begin, os.times()
            processor = after.children_user - before.children_user + after.children_system - before.children_system
            if number:
                taken[name].append((wall * 1000, processor * 1000))
    progress("")
    return {name: _row(values, taken) for name, values in taken.items()}


def _row(values: list[tuple[float, float]], taken: dict[str, list[tuple[float, float]]]) -> dict[str, float]:
    """Medians and ratios to a bare interpreter in the same round; processor time has ticks, so its mean is taken."""
    bare = taken[BASELINES["python"]]
    deciles = statistics.quantiles([wall for wall, _ in values], n=10, method="inclusive")
    return {
        "median_ms": statistics.median(wall for wall, _ in values),
        "p10_ms": deciles[0],
        "p90_ms": deciles[8],
        "ratio": statistics.median(wall / base for (wall, _), (base, _) in zip(values, bare, strict=True)),
        "processor_ratio": sum(cpu for _, cpu in values) / max(1.0, sum(cpu for _, cpu in bare)),
    }


def _table(rows: dict[str, dict[str, float]]) -> str:
    lines = ["| case | ms | p10 to p90 | ratio to a bare python | ratio of processor time |", "|---|---|---|---|---|"]
    lines += [
        f"| {name} | {row['median_ms']:.1f} | {row['p10_ms']:.1f} to {row['p90_ms']:.1f} | {row['ratio']:.2f} |"
        f" {row['processor_ratio']:.2f} |"
        for name, row in rows.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
