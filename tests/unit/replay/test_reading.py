# SPDX-License-Identifier: MIT
"""A trace's file as a recording: what repeats is parsed once, and nothing else is taken for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from agentbox.replay.reading import ends_of, recording_in, replayable, surely_reads_only
from agentbox.replay.recording import Recording
from agentbox.trace.keys import KeyStore
from agentbox.trace.ledger import Ledger
from agentbox.trace.record import RUN_END
from agentbox.trace.writer import Run, TraceWriter

# Names and members that look like the borders of a record.
STRANGE = '/a","i":7,"kind":"observe","prev":"' + "0" * 64 + '","sha":"'


def _steps(recording: Recording) -> dict[str, list[tuple[object, ...]]]:
    return {
        lane: [(one.index, one.kind, one.op, one.args, one.result, one.call) for one in steps]
        for lane, steps in recording.lanes.items()
    }


def test_records_that_repeat_are_read_as_each_for_itself(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys")
    path = tmp_path / "trace.jsonl"
    run = Run("run-1", "p" * 64, {"argv": ["x"], "random_seed": "5e" * 32})
    writer = TraceWriter(path, run, keys.load_or_create(), Ledger(keys.ledger_path))
    for _ in range(3):
        for name, lane in (("/a", "main"), ("/b", "main"), ("/a", "main.0"), (STRANGE, "main"), ("/a", STRANGE[:20])):
            writer.append("observe", "fs.open_read", {"path": name, "sha256": "x"}, origin="guest", pid=3, lane=lane)
        writer.append("observe", "x.y", {"i": 5, "prev": {"i": 7}, "sha": "s"}, origin="guest", pid=3, lane="main")
        writer.append("effect", "clock.now", {}, result=1.5, origin="guest", pid=3, lane="main")
        writer.append("effect", "rand.random", {}, result={"prev": STRANGE}, origin="guest", pid=3, lane="main")
        writer.append("observe", "clock.values", {"calls": [["t", 1], ["t", 2]]}, origin="guest", pid=3, lane="main")
        writer.append("observe", "proc.exec", {"argv": ["x"]}, origin="kernel", pid=4)
        writer.append("observe", "fs.open_read", {"path": "/a"}, origin="guest", pid=3, lane="!main")
        writer.append("deny", "read", {"target": "/c", "enforced": True}, origin="guest", pid=3, lane="main")
    writer.append("meta", RUN_END, {"returncode": 0})
    writer.seal()
    found, careful = replayable(path), recording_in(path)
    assert _steps(found) == _steps(careful)
    assert (found.total, len(found.lanes)) == (3 * 10, 3)
    assert (found.denials, found.start, found.end) == (careful.denials, careful.start, careful.end)


def _written(directory: Path, ops: Sequence[tuple[str, str]], *, ends: bool = True, seed: str = "5e" * 32) -> Path:
    keys, path = KeyStore(directory / "keys"), directory / "trace.jsonl"
    run = Run("run-1", "p" * 64, {"argv": ["x", STRANGE], "random_seed": seed})
    writer = TraceWriter(path, run, keys.load_or_create(), Ledger(keys.ledger_path))
    for kind, op in ops:
        writer.append(kind, op, {"path": '/a","op":"fs.remove","x":"'}, origin="guest", pid=3, lane="main")
    if ends:
        writer.append("meta", RUN_END, {"returncode": 3, "stdout": {"bytes": 0}})
    writer.seal()
    return path


def test_the_ends_of_a_trace_tell_what_all_of_it_does_of_start_and_end(tmp_path: Path) -> None:
    path = _written(tmp_path, [("observe", "fs.open_read")] * 3000)
    ends, whole = ends_of(path), replayable(path)
    assert ends is not None
    assert (ends.start, ends.end, ends.end_index) == (whole.start, whole.end, whole.end_index)
    assert (ends.total, whole.total) == (0, 3000)


@pytest.mark.parametrize("damage", ["no end", "no seed", "no trace", "torn", "not there"])
def test_ends_that_do_not_tell_what_a_replay_begins_with_are_none(tmp_path: Path, damage: str) -> None:
    path = _written(tmp_path, [], ends=damage != "no end", seed="" if damage == "no seed" else "5e" * 32)
    if damage == "no trace":
        path.write_bytes(b"\xff\n{}\n")
    elif damage == "torn":
        path.write_bytes(path.read_bytes()[:-700])
    elif damage == "not there":
        path.unlink()
    assert ends_of(path) is None


@pytest.mark.parametrize(
    ("ops", "reads_only"),
    [
        ([("observe", "fs.open_read"), ("effect", "fs.read_text"), ("observe", "clock.values")], True),
        ([("observe", "fs.open_read"), ("observe", "fs.remove")], False),
        ([("effect", "fs.write_text")], False),
        ([("observe", "proc.spawn")], False),
        ([("observe", "fs.written")], False),
    ],
)
def test_what_surely_only_reads_is_told_without_parsing(
    tmp_path: Path, ops: Sequence[tuple[str, str]], reads_only: bool
) -> None:
    path = _written(tmp_path, ops)
    assert surely_reads_only(path) is reads_only
    assert not (reads_only and replayable(path).changes_files())


def test_a_file_that_is_not_there_does_not_surely_read_only(tmp_path: Path) -> None:
    assert not surely_reads_only(tmp_path / "none")
