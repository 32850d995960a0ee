# SPDX-License-Identifier: MIT
"""What `agentbox run` adds to the start of a command.

Wall-clock time is what a user waits, and depends on what else the machine does; processor time is of the whole family
of processes, and depends on it less.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.agent_command import OLD_NAME, compiled_environment, old_command
from benchmarks.interleaved import Case, NotHereError, interleave, progress, reason
from benchmarks.preparing import unmeasured
from benchmarks.processes import PYTHON
from benchmarks.report import Row, Section, in_order
from benchmarks.sections import Options
from benchmarks.spread import Spread, ratio_in_rounds

TITLE = "Start of a command"
BARE = "python3 -c pass"
FIRST = "agentbox run -- python3 -c pass"
NEWER = f"{FIRST}, console script of a newer pip"
OLD = f"{OLD_NAME} run -- python3 -c pass"
POLICY = "read: ./src\nwrite: ./out\nexec: git status\nenv: LANG\n"
REPOSITORY = Path(__file__).parent.parent.parent
NOTE = (
    "This checkout is installed into a new virtual environment of /usr/bin/python3, as a user would. `processor` is "
    "the same ratio of processor time, of all processes together."
)

# Milliseconds by the clock and of the processor.
Times = tuple[float, float]


def measure(options: Options) -> Section:
    """All commands, interleaved."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentbox-bench-start-")))
        progress("installing this checkout")
        commands, missing = _commands(place, _installed(place / "venv")), []
        further: dict[str, Callable[[], list[str]]] = {
            NEWER: lambda: [*_newer(place, options), *commands[FIRST][1:]],
            OLD: lambda: [*old_command(), "run", "-p", "rules", "--", *commands[BARE]],
        }
        for name, find in further.items():
            try:
                commands[name] = find()
            except NotHereError as error:
                missing.append(Row(name, missing=reason(error)))
        environment = compiled_environment(place / "state")
        cases = [Case(name, _timed(words, place, environment)) for name, words in commands.items()]
        taken = interleave(cases, options.rounds_or(30, 2))
    rows = [_row(name, rounds, taken.rounds[BARE]) for name, rounds in taken.rounds.items()]
    rows += [unmeasured(name, why, name != OLD) for name, why in taken.failed.items()]
    return Section("start", TITLE, BARE, in_order([*rows, *missing], [*commands]), (NOTE,))


def _installed(venv: Path, *options: str) -> list[str]:
    """The command of this checkout, installed with its modules compiled."""
    made = subprocess.run([PYTHON, "-m", "venv", *options, venv], check=False, capture_output=True, text=True)
    if made.returncode == 0:
        made = subprocess.run(
            [venv / "bin" / "pip", "install", "--quiet", REPOSITORY], check=False, capture_output=True, text=True
        )
    if made.returncode:
        raise NotHereError(f"{PYTHON} cannot install it: {(made.stderr or made.stdout).strip()[-160:]}")
    return [str(venv / "bin" / "agentbox")]


def _newer(place: Path, options: Options) -> list[str]:
    if options.quick:
        raise NotHereError("left out by --quick")
    return _installed(place / "newer", "--upgrade-deps")


def _commands(place: Path, command: list[str]) -> dict[str, list[str]]:
    (place / "src").mkdir()
    (place / "out").mkdir()
    (place / "rules").write_text(POLICY, encoding="utf-8")
    (place / "empty").write_text("# nothing is allowed\n", encoding="utf-8")
    python, run = [PYTHON, "-c", "pass"], [*command, "run", "-q", "-p"]
    return {
        BARE: python,
        "/bin/true": ["/bin/true"],
        FIRST: [*run, "rules", "--", *python],
        f"{FIRST}, an empty policy": [*run, "empty", "--", *python],
        "agentbox run -- true": [*run, "rules", "--", "/bin/true"],
        "agentbox run --help": [*command, "run", "--help"],
        "agentbox --help": [*command, "--help"],
    }


def _timed(words: list[str], place: Path, environment: dict[str, str]) -> Callable[[], Times]:
    def call() -> Times:
        before, begin = os.times(), time.perf_counter()
        subprocess.run(words, cwd=place, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=True)
        wall, after = time.perf_counter() - begin, os.times()
        used = after.children_user - before.children_user + after.children_system - before.children_system
        return wall * 1000, used * 1000

    return call


def _row(name: str, rounds: list[list[Times]], bare: list[list[Times]]) -> Row:
    def walls(of: list[list[Times]]) -> list[list[float]]:
        return [[wall for wall, _ in values] for values in of]

    def used(of: list[list[Times]]) -> float:
        # Processor time comes in ticks of ten milliseconds: only its sum says anything.
        return sum(processor for values in of for _, processor in values)

    extra = {"processor": used(rounds) / max(10.0, used(bare))}
    return Row(name, Spread.of_rounds(walls(rounds)), ratio=ratio_in_rounds(walls(rounds), walls(bare)), extra=extra)
