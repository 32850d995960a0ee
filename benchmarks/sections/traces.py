# SPDX-License-Identifier: MIT
"""Timing of traces: appending records, and verifying a long trace with our command and with the old runtime's."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from agentbox.trace.keys import KeyStore
from agentbox.trace.ledger import Ledger
from agentbox.trace.writer import Run, TraceWriter
from benchmarks.measure import Case
from tests.running_server import clean_environment

RECORDS = 100_000
PER_ROW = 10_000
APPENDED = 2000


def trace_cases(stack: ExitStack) -> dict[str, Case]:
    """Rows are per 10,000 records of a trace of 100,000, start of the command included; what that is, a short trace
    says. The old runtime's rows are there when AGENTBOX_BENCH_S3_PYTHON names its Python.
    """
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentbox-bench-trace-")))
    environment = clean_environment({"AGENTBOX_STATE_DIR": str(directory / "state")})
    ours = directory / "trace.jsonl"
    write_ours(ours, directory, RECORDS)
    short = directory / "short.jsonl"
    write_ours(short, directory, 1)
    command = [sys.executable, "-m", "agentbox.cli.main"]
    names = count()
    found = {
        "trace: append 10,000 records": Case(
            lambda: write_ours(directory / f"appended{next(names)}", directory, APPENDED), runs=APPENDED / PER_ROW
        ),
        "trace: agentbox verify, 10,000 records": Case(_verify(command, ours, environment), runs=RECORDS / PER_ROW),
        "trace: agentbox verify, a short trace": Case(_verify(command, short, environment)),
    }
    python = os.environ.get("AGENTBOX_BENCH_S3_PYTHON", "")
    if python and Path(python).exists():
        old = directory / "old.jsonl"
        write_old(old, RECORDS)
        old_short = directory / "old_short.jsonl"
        write_old(old_short, 3)
        command = [str(Path(python).parent / "agentbox")]
        found["trace: agentbox-runtime 0.3 verify, 10,000 records"] = Case(
            _verify(command, old, environment), runs=RECORDS / PER_ROW
        )
        found["trace: agentbox-runtime 0.3 verify, a short trace"] = Case(_verify(command, old_short, environment))
    return found


def write_ours(path: Path, directory: Path, records: int) -> None:
    """A sealed trace of so many records, signed with the key below `directory`/state."""
    store = KeyStore(directory / "state" / "trace")
    writer = TraceWriter(path, Run(path.name, "0" * 64, {}), store.load_or_create(), Ledger(store.ledger_path))
    for number in range(records):
        args, result = _effect(number)
        writer.append("effect", "fs.read_text", args, result=result, origin="guest", pid=7, lane="main")
    writer.seal()


def write_old(path: Path, records: int) -> None:
    """A trace of the old runtime's form."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(_old_lines(records))


def _old_lines(records: int) -> Iterator[str]:
    prev = "0" * 64
    for number in range(records):
        args, result = _effect(number)
        entry = {"i": number, "ts": 1796004783.25, "kind": "effect", "op": "fs.read_text", "args": args}
        entry |= {"result": result, "prev": prev}
        body = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        entry["sha"] = prev = hashlib.sha256((prev + body).encode()).hexdigest()
        yield json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"


def _effect(number: int) -> tuple[dict[str, str], str]:
    return {"path": f"data/file{number}.txt"}, f"text of the file number {number}, é"


def _verify(command: list[str], path: Path, environment: dict[str, str]) -> Callable[[], None]:
    def call() -> None:
        done = subprocess.run(
            [*command, "verify", "-t", str(path)], env=environment, cwd=path.parent, capture_output=True, check=True
        )
        assert b"trace ok" in done.stdout

    return call
