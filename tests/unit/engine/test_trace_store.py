# SPDX-License-Identifier: MIT
from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentbox.engine import run_trace
from agentbox.engine.run_trace import RunTraces
from agentbox.engine.trace_store import TraceStore
from agentbox.errors import NotFoundError, TraceError
from agentbox.trace.keys import SigningKey
from agentbox.trace.ledger import Ledger, Standing


def store_at(path: Path, keep_runs: int = 100, keep_bytes: int = 1 << 20) -> TraceStore:
    store = TraceStore(path, keep_runs=keep_runs, keep_bytes=keep_bytes)
    store.open()
    return store


def write(store: TraceStore, owner: str, number: int, size: int = 10) -> str:
    run_id = f"{number:032x}"
    store.new(owner, run_id).write_bytes(b"x" * size)
    store.keep(owner, run_id)
    return run_id


def test_the_ledger_forgets_runs_whose_traces_made_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_trace, "FORGET_TOGETHER", 3)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.note(Standing("of a command", 1, "0" * 64, sealed=True))
    store = TraceStore(tmp_path / "traces", keep_runs=2, keep_bytes=1 << 20)
    traces = RunTraces(store, SigningKey(b"k" * 32), tmp_path / "ledger.jsonl", 1 << 20)
    traces.open()
    names = [f"{number:032x}" for number in range(6)]
    for name in names:
        ledger.note(Standing(name, 1, "0" * 64, sealed=True))
        store.new("alice", name).write_bytes(b"x")
        traces.keep("alice", name)
    assert [ledger.find(name) is not None for name in names] == [False, False, False, True, True, True]
    assert ledger.find("of a command") is not None


def kept(store: TraceStore, owner: str, *names: str) -> list[bool]:
    found = []
    for name in names:
        try:
            store.read(owner, name).close()
            found.append(True)
        except NotFoundError:
            found.append(False)
    return found


def test_a_trace_is_read_by_its_owner_when_its_run_has_ended(tmp_path: Path) -> None:
    store = store_at(tmp_path / "traces")
    run_id = f"{1:032x}"
    store.new("alice", run_id).write_bytes(b"text")
    assert kept(store, "alice", run_id) == [False]
    store.keep("alice", run_id)
    with store.read("alice", run_id) as file:
        assert file.read() == b"text"
    assert kept(store, "bob", run_id) == [False]


@pytest.mark.parametrize("name", ["", "..", "../alice/x", "x" * 32, "0" * 31, f"{1:032x}.jsonl", "\0" * 32])
def test_what_is_no_run_id_is_not_found(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotFoundError):
        store_at(tmp_path).read("alice", name)


def test_the_oldest_go_when_there_are_too_many(tmp_path: Path) -> None:
    store = store_at(tmp_path, keep_runs=2)
    names = [write(store, "alice", number) for number in range(4)]
    other = write(store, "bob", 9)
    assert kept(store, "alice", *names) == [False, False, True, True]
    assert kept(store, "bob", other) == [True]
    assert len(list((tmp_path / "alice").iterdir())) == 2


def test_the_oldest_go_when_they_are_too_large_together_but_never_the_last(tmp_path: Path) -> None:
    store = store_at(tmp_path, keep_bytes=100)
    names = [write(store, "alice", number, 40) for number in range(3)]
    assert kept(store, "alice", *names) == [False, True, True]
    large = write(store, "alice", 7, 1000)
    assert kept(store, "alice", *names, large) == [False, False, False, True]


def test_owners_are_told_apart_whatever_they_are_called(tmp_path: Path) -> None:
    store = store_at(tmp_path / "traces")
    paths = {store.new(owner, "0" * 32) for owner in ("a", "A", "..", ".", "a.b", "a-b")}
    assert len(paths) == 6
    assert all(path.resolve().parent.parent == (tmp_path / "traces").resolve() for path in paths)


def test_a_new_server_finds_what_was_kept_and_removes_what_is_too_much(tmp_path: Path) -> None:
    first = store_at(tmp_path)
    names = [write(first, "alice", number) for number in range(3)]
    for age, name in enumerate(reversed(names)):
        os.utime(tmp_path / "alice" / f"{name}.jsonl", (1000 - age, 1000 - age))
    (tmp_path / "alice" / "notes.txt").write_text("not ours", encoding="utf-8")
    assert kept(store_at(tmp_path, keep_runs=2), "alice", *names) == [False, True, True]
    assert (tmp_path / "alice" / "notes.txt").exists()


def test_a_directory_that_cannot_be_made_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TraceError) as caught:
        store_at(tmp_path / "file" / "traces")
    assert "AGENTBOX_STATE_DIR" in caught.value.hint


def test_what_is_kept_beside_a_trace_counts_and_goes_with_it(tmp_path: Path) -> None:
    store = TraceStore(tmp_path / "traces", keep_runs=9, keep_bytes=100)
    store.open()
    first = f"{1:032x}"
    trace = store.new("alice", first)
    trace.write_bytes(b"x")
    store.keep_beside("alice", first, b"request")
    blobs = trace.with_name(f"{trace.name}.blobs")
    blobs.mkdir()
    (blobs / "bytes").write_bytes(b"y" * 80)
    store.keep("alice", first)
    assert store.beside("alice", first) == b"request"
    write(store, "alice", 2, 20)
    assert sorted(path.name for path in trace.parent.iterdir()) == [f"{2:032x}.jsonl"]
