# SPDX-License-Identifier: MIT
"""What traces cost: appending records, and `verify` of long and short ones beside the old runtime's."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

from agentbox.trace.keys import KeyStore
from agentbox.trace.ledger import Ledger
from agentbox.trace.writer import Run, TraceWriter
from benchmarks.agent_command import AGENTBOX, OLD_NAME, Project, old_command_or_none
from benchmarks.interleaved import Case, interleave, progress
from benchmarks.pairs import Pair, compared
from benchmarks.report import Row, Section
from benchmarks.sections import Options
from benchmarks.spread import Spread

TITLE = "Traces"
NOTE = "Microseconds of one record; of `verify` the processor's time, the start of the command included."
APPENDED = 2000
LENGTHS = (1, 10_000, 100_000)


def measure(options: Options) -> Section:
    """Appending, and all lengths of verified traces."""
    lengths = LENGTHS[:2] if options.quick else LENGTHS
    rounds, old = options.rounds_or(10, 1), old_command_or_none()
    with tempfile.TemporaryDirectory(prefix="agentbox-bench-traces-") as directory:
        project = Project(Path(directory))
        for length in lengths:
            progress(f"writing traces of {length} records")
            write_ours(project.path / f"{length}.jsonl", project.directory, length)
            write_old(project.path / f"{length}.old.jsonl", max(3, length))
        appended = interleave([Case("append", _append(project.directory))], rounds).rounds["append"]
        rows = [Row("append a record and write it, in large groups", Spread.of_rounds(appended), "us")]
        if old:
            rows += compared(list(_pairs(project, old, lengths)), rounds, warm_up=not options.quick)
        else:
            verified = interleave([_alone(project, length) for length in lengths], rounds)
            rows += [Row(name, Spread.of_rounds(found), "us") for name, found in verified.rounds.items()]
            rows.append(Row(f"verify, beside {OLD_NAME}", missing=f"{OLD_NAME} is not installed"))
        for length in lengths:
            _, _, peak = project.execute([*AGENTBOX, "verify", "-t", f"{length}.jsonl"])
            rows.append(Row(f"peak memory of {_name(length)}", Spread.of([peak * 1024 / 1e6]), "MB"))
    return Section("traces", TITLE, "", tuple(rows), (NOTE,))


def _name(length: int) -> str:
    return f"verify of {length:,} record{'s' if length > 1 else ''}"


def _alone(project: Project, length: int) -> Case[float]:
    return Case(_name(length), partial(_verify, project, AGENTBOX, f"{length}.jsonl", length))


def _pairs(project: Project, old: list[str], lengths: tuple[int, ...]) -> Iterator[Pair]:
    for length in lengths:
        yield Pair(
            _name(length),
            "us",
            partial(_verify, project, AGENTBOX, f"{length}.jsonl", length),
            partial(_verify, project, old, f"{length}.old.jsonl", max(3, length)),
            OLD_NAME,
            "<= 0.2" if length > 1 else "",
        )


def _verify(project: Project, command: list[str], trace: str, records: int) -> float:
    text, seconds, _ = project.execute([*command, "verify", "-t", trace])
    if "trace ok" not in text:
        raise RuntimeError(f"{command} does not verify its own trace: {text}")
    return seconds * 1e6 / records


def _append(directory: Path) -> Callable[[], float]:
    numbers = count()

    def call() -> float:
        begin = time.perf_counter()
        write_ours(directory / f"appended{next(numbers)}", directory, APPENDED)
        return (time.perf_counter() - begin) * 1e6 / APPENDED

    return call


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
