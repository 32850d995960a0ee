# SPDX-License-Identifier: MIT
"""What a checkpoint of a tree costs, and noting what a run changed in it, beside snapback and a plain copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from agentbox.workspace import checkpoint_undo
from agentbox.workspace.checkpoint_scan import Scope
from agentbox.workspace.checkpoint_store import CheckpointStore
from agentbox.workspace.checkpoint_times import LASTING
from benchmarks.interleaved import NotHereError, progress
from benchmarks.pairs import Pair, compared
from benchmarks.report import Row, Section
from benchmarks.rivals import VARIABLE
from benchmarks.sections import Options
from benchmarks.ways import old_python

TITLE = "Checkpoints"
NOTE = (
    "Processor time of one process, without its start. Between two checkpoints of {files:,} files one changes. The tree"
    " has lain still for as long as the kernel takes to write it out: before that, contents are compared anew."
)
FILES = 10_000
_IN_A_DIRECTORY = 50
_LINES = 300
SNAPBACK = "snapback 0.2"
LATER = "a checkpoint, one file changed since the last"
FIRST = "the first checkpoint"
COPY = "a copy by shutil.copytree"
_BY_SNAPBACK = """
import pathlib, time
from snapback.store import Store
begin = time.process_time()
Store(pathlib.Path(".").resolve()).snapshot([{"backend": "copytree", "ignore": [".agentbox"]}])
print(time.process_time() - begin)
"""


class Tree:
    """A project with so many files, and checkpoints of it."""

    def __init__(self, directory: Path, files: int) -> None:
        self.directory = directory
        self.work = directory / "work"
        self._numbers = count(1)
        self._scope = Scope(str(directory), (str(self.work),))
        (directory / ".agentbox").mkdir()
        for number in range(files):
            if number % _IN_A_DIRECTORY == 0:
                (self.work / str(number // _IN_A_DIRECTORY)).mkdir(parents=True)
            path = self.work / str(number // _IN_A_DIRECTORY) / f"{number}.txt"
            path.write_text(f"line of the file {number}\n" * (_LINES // 10))
        self.taken = ""

    def take(self) -> float:
        """Seconds of a checkpoint, after one file was changed."""
        (self.work / "0" / "0.txt").write_text(str(next(self._numbers)))
        self.taken = f"20260101-000000-{next(self._numbers):06x}"
        begin = time.process_time()
        self.before = CheckpointStore(str(self.directory)).take(self.taken, "run", self._scope)
        return time.process_time() - begin

    def first(self) -> float:
        """Seconds of a checkpoint where there is none."""
        shutil.rmtree(self.directory / ".agentbox" / "checkpoints", ignore_errors=True)
        return self.take()

    def note(self) -> float:
        """Seconds of noting what changed, after one file was changed."""
        (self.work / "1" / "50.txt").write_text(str(next(self._numbers)))
        begin = time.process_time()
        CheckpointStore(str(self.directory)).note_changes(self.taken, self._scope, self.before)
        return time.process_time() - begin

    def undo(self) -> float:
        """Seconds of undoing a change of one file."""
        self.take()
        self.note()
        store = CheckpointStore(str(self.directory))
        begin = time.process_time()
        checkpoint_undo.undo(store, store.get(self.taken))
        return time.process_time() - begin

    def by_snapback(self, python: str) -> float:
        """Seconds of snapback's own snapshot."""
        shutil.rmtree(self.directory / ".snapback", ignore_errors=True)
        done = subprocess.run(
            [python, "-c", _BY_SNAPBACK], cwd=self.directory, capture_output=True, text=True, check=True
        )
        return float(done.stdout)

    def copied(self) -> float:
        """Seconds of a copy of the tree."""
        copy = self.directory / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        begin = time.process_time()
        shutil.copytree(self.work, copy, symlinks=True)
        return time.process_time() - begin

    def is_old(self) -> bool:
        """Whether the store trusts the times of most files by now."""
        return sum(entry.sure >= LASTING for entry in self.before.values()) > len(self.before) // 2


def measure(options: Options) -> Section:
    """First and later checkpoints, what is noted at the end, and undoing."""
    files = FILES // 20 if options.quick else FILES
    with tempfile.TemporaryDirectory(prefix="agentbox-bench-checkpoints-", dir=_on_disk()) as directory:
        progress(f"writing {files} files")
        tree = Tree(Path(directory), files)
        tree.take()
        deadline = time.monotonic() + (0 if options.quick else 120)
        while not tree.is_old() and time.monotonic() < deadline:
            progress("waiting until the files are old")
            time.sleep(5)
            tree.take()
        other, call, wanted = _other(tree)
        # Bounds are on the ratio to snapback.
        beside = "" if other == SNAPBACK else ", beside a copy"
        pairs = [
            Pair(LATER + beside, "ms", _ms(tree.take), call, other, wanted),
            Pair("what a run changed, noted at its end", "ms", _ms(tree.note), call, other),
            Pair(f"undoing one changed file of {files:,}", "ms", _ms(tree.undo), call, other),
        ]
        rows = compared(pairs, options.rounds_or(5, 1), warm_up=False)
        rows += compared(
            [Pair(FIRST + beside, "ms", _ms(tree.first), call, other, wanted)], options.rounds_or(3, 1), warm_up=False
        )
        if other != SNAPBACK:
            rows.append(Row(f"beside {SNAPBACK}", missing=f"{SNAPBACK} is not installed"))
    return Section("checkpoints", TITLE, "", tuple(rows), (NOTE.format(files=files),))


def _other(tree: Tree) -> tuple[str, Callable[[], float], str]:
    """What to compare with: snapback, or what it does at least."""
    try:
        python = old_python(VARIABLE, "the environment of requirements/rivals.txt")
        subprocess.run([python, "-c", "import snapback.store"], check=True, capture_output=True)
    except (NotHereError, subprocess.CalledProcessError):
        return COPY, _ms(tree.copied), ""
    return SNAPBACK, _ms(lambda: tree.by_snapback(python)), "<= 0.33"


def _ms(call: Callable[[], float]) -> Callable[[], float]:
    return lambda: call() * 1000


def _on_disk() -> str | None:
    """Where temporary files are no memory: there every content is compared each time."""
    return "/var/tmp" if os.access("/var/tmp", os.W_OK) else None
