# SPDX-License-Identifier: MIT
"""Forks, snapshots and restores of a sandbox with 100 MB of files, beside a copy of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from agentbox.sandbox.synchronous import Sandbox
from benchmarks.interleaved import Case, interleave, reason
from benchmarks.report import Row, Section
from benchmarks.sections import Options
from benchmarks.spread import Spread, ratio_in_rounds

TITLE = "States of sandboxes"
FILES = 2000
FILE_BYTES = 50_000
WHAT = f"{FILES} files, {FILES * FILE_BYTES // 1_000_000} MB"
COPY = f"cp -a of the workspace ({WHAT})"
FORK = "fork of the sandbox, jail, to its first command"
SNAPSHOT = "snapshot"
RESTORE = "restore, to the first command"
MOST_OF_A_COPY = "<= 0.2"
_COMMAND = ["/bin/sh", "-c", "echo 1"]
# What the copy and the removed forks left to be written.
_REST_SECONDS = 0.5


@contextlib.contextmanager
def _filled(volumes: str) -> Iterator[tuple[Sandbox, Path]]:
    """A sandbox with files, which lie on the disk by now, and a directory for copies."""
    before = {name: os.environ.get(name) for name in ("AGENTBOX_STATE_DIR", "AGENTBOX_WORKSPACE_VOLUMES")}
    with tempfile.TemporaryDirectory(prefix="agentbox-bench-") as directory:
        os.environ |= {"AGENTBOX_STATE_DIR": f"{directory}/state", "AGENTBOX_WORKSPACE_VOLUMES": volumes}
        try:
            with Sandbox(backend="jail", disk="1g") as sandbox:
                workspace = Path(str(sandbox.workspace))
                for number in range(FILES):
                    place = workspace / f"d{number // 50}"
                    place.mkdir(exist_ok=True)
                    (place / f"f{number}").write_bytes(os.urandom(FILE_BYTES))
                os.sync()
                yield sandbox, Path(directory)
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _timed(work: Callable[[], Callable[[], object]]) -> Callable[[], float]:
    """Milliseconds of what gives a function that tidies up, which is not measured."""

    def call() -> float:
        began = time.perf_counter()
        tidy = work()
        taken = (time.perf_counter() - began) * 1e3
        tidy()
        return taken

    return call


def _said(sandbox: Sandbox) -> None:
    command = sandbox.exec(_COMMAND)
    if command.stdout != b"1\n":
        raise RuntimeError(f"the command said {command.stdout!r}")


def compare(volumes: str, rounds: int, shown: str, wanted: str) -> list[Row]:
    """Of workspaces in an image or in directories."""
    try:
        with _filled(volumes) as (sandbox, directory):
            copied = directory / "copy"
            kept = sandbox.snapshot("begin").snapshot_id

            def copy() -> Callable[[], object]:
                subprocess.run(["cp", "-a", str(sandbox.workspace), str(copied)], check=True)
                return lambda: shutil.rmtree(copied)

            def fork() -> Callable[[], object]:
                (made,) = sandbox.fork()
                _said(made)
                return made.stop

            def snapshot() -> Callable[[], object]:
                taken = sandbox.snapshot()
                return lambda: sandbox.delete_snapshot(taken.snapshot_id)

            def restore() -> Callable[[], object]:
                sandbox.restore(kept)
                _said(sandbox)
                return lambda: None

            work = {COPY: copy, FORK: fork, SNAPSHOT: snapshot, RESTORE: restore}
            taken = interleave(
                [Case(name, _timed(one), rest_seconds=_REST_SECONDS) for name, one in work.items()], rounds
            )
    except Exception as error:
        return [Row(f"{FORK}{shown}", missing=reason(error))]
    rows = []
    for name in work:
        if name in taken.failed:
            rows.append(Row(f"{name}{shown}", missing=taken.failed[name]))
            continue
        ratio = None if name == COPY else ratio_in_rounds(taken.rounds[name], taken.rounds[COPY])
        asked = wanted if name == FORK else ""
        against = "" if ratio is None else COPY
        rows.append(Row(f"{name}{shown}", Spread.of_rounds(taken.rounds[name]), "ms", ratio, against, asked))
    return rows


def measure(options: Options) -> Section:
    """In an image, where copies share everything; and in directories, where the file system may share nothing."""
    rows = compare("image", options.rounds_or(20, 2), "", MOST_OF_A_COPY)
    rows += compare("directories", options.rounds_or(5, 1), ", without an image", "")
    return Section("states", TITLE, "", tuple(rows))
