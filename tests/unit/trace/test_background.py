# SPDX-License-Identifier: MIT
"""Traces that a thread writes, and that are kept in parts when they grow."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from agentbox.errors import TraceError
from agentbox.trace.background import MAX_WAITING, Subject, TraceLog, parts_of
from agentbox.trace.keys import KeyStore
from agentbox.trace.reader import read
from agentbox.trace.record import Entry
from agentbox.trace.verdict import Status, Trust
from agentbox.trace.verify import verify

SHA = "0" * 64


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    """The keys of a state directory."""
    return KeyStore(tmp_path / "keys")


def entries(path: str | Path) -> list[Entry]:
    return [item for item in read(path) if isinstance(item, Entry)]


def trust(keys: KeyStore) -> Trust:
    from agentbox.trace.ledger import Ledger

    return Trust(keys.trusted(), Ledger(keys.ledger))


def test_what_was_handed_over_is_in_the_file_in_its_order_and_its_index_is_told(tmp_path: Path, keys: KeyStore) -> None:
    log = TraceLog(Subject(str(tmp_path / "trace.jsonl"), SHA, {"sandbox": "s"}), keys)
    log.open().result()
    told: list[int] = []
    for number in range(1000):
        log.append("observe", "a.b", {"number": number}, on_index=told.append)
    log.append("observe", "a.c", lambda: {"later": True})
    log.settled().result()
    found = entries(log.path)
    numbers = [entry.args["number"] for entry in found if entry.op == "a.b"]
    assert numbers == list(range(1000))
    assert [found[index].args["number"] for index in told] == numbers
    assert found[-1].args == {"later": True}
    head = log.seal(0, {}).result()
    assert head is not None
    assert verify(log.path, trust(keys)).status is Status.OK


def test_a_trace_that_grows_is_sealed_in_parts_each_naming_the_one_before(tmp_path: Path, keys: KeyStore) -> None:
    log = TraceLog(Subject(str(tmp_path / "trace.jsonl"), SHA, {}), keys, part_bytes=8192, kept_parts=2)
    log.open().result()
    for number in range(400):
        log.append("observe", "a.b", {"number": number, "text": "x" * 100})
        log.settled().result()
    log.seal(0, {}).result()
    parts = parts_of(log.path)
    assert len(parts) == 3, "the last, and two before it"
    assert parts[-1] == log.path
    assert [verify(part, trust(keys)).status for part in parts] == [Status.OK] * 3
    for before, after in itertools.pairwise(parts):
        end, begin = entries(before)[-1], entries(after)[0]
        assert begin.args["continues"] == {"run": end.args["run"], "count": end.i + 1, "head": end.sha}
    numbers = [entry.args["number"] for part in parts for entry in entries(part) if entry.op == "a.b"]
    assert numbers == list(range(numbers[0], 400))


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path, keys: KeyStore) -> None:
    (tmp_path / "trace.jsonl").write_text("mine")
    log = TraceLog(Subject(str(tmp_path / "trace.jsonl"), SHA, {}), keys)
    with pytest.raises(TraceError, match="exists"):
        log.open().result()
    assert (tmp_path / "trace.jsonl").read_text() == "mine"


def test_what_cannot_be_written_is_told_once_and_nothing_waits(tmp_path: Path, keys: KeyStore) -> None:
    failures: list[TraceError] = []
    log = TraceLog(Subject(str(tmp_path / "trace.jsonl"), SHA, {}), keys, failures.append, part_bytes=1024)
    log.open().result()
    # A part that is full is put aside, which is where the directory is missed.
    (tmp_path / "trace.1.jsonl").mkdir()
    (tmp_path / "trace.1.jsonl" / "occupied").mkdir()
    for _ in range(20):
        log.append("observe", "a.b", {"text": "x" * 200})
        log.settled().result()
    assert len(failures) == 1
    assert log.failure is failures[0]
    assert log.seal(0, {}).result() is None


def test_what_may_be_lost_is_counted_while_the_thread_does_not_come_to_it(tmp_path: Path, keys: KeyStore) -> None:
    log = TraceLog(Subject(str(tmp_path / "trace.jsonl"), SHA, {}), keys)
    log.open().result()
    # The thread is behind.
    log._taken -= MAX_WAITING + 1
    for _ in range(3):
        log.append("observe", "proc.exec", {}, may_be_lost=True)
    log._taken += MAX_WAITING + 1
    log.append("observe", "a.b", {})
    log.seal(0, {}).result()
    assert [(entry.op, entry.args) for entry in entries(log.path)[1:3]] == [("witness.lost", {"count": 3}), ("a.b", {})]
