# SPDX-License-Identifier: MIT
"""The writer: what it promises to have kept, what it refuses, and how it fails."""

from __future__ import annotations

import base64
import json
import os
import resource
import stat
from pathlib import Path

import pytest

from agentbox.errors import TraceError
from agentbox.trace.canonical import is_canonical
from agentbox.trace.ledger import Standing
from agentbox.trace.reader import read
from agentbox.trace.record import Entry
from agentbox.trace.verdict import Status
from agentbox.trace.writer import CHECKPOINT_RECORDS
from tests.unit.trace.recording import Recording, clock_of


def entries(path: Path) -> list[Entry]:
    return [item for item in read(path) if isinstance(item, Entry)]


def ops(path: Path) -> list[str]:
    return [entry.op for entry in entries(path)]


def test_first_record_binds_run_policy_and_key(recording: Recording) -> None:
    first = entries(recording.trace(0))[0]
    assert (first.i, first.kind, first.op, first.origin) == (0, "meta", "run.start", "supervisor")
    assert first.args == {"argv": ["x"], "run": "run-1", "policy_sha256": "p" * 64, "key": recording.key.public.id}


def test_sealed_trace_verifies_and_the_ledger_knows_its_end(recording: Recording) -> None:
    path = recording.trace(10)
    verdict = recording.verdict(path)
    assert (verdict.status, verdict.count, verdict.signed_count, verdict.sealed) == (Status.OK, 13, 13, True)
    assert recording.ledger.find("run-1") == Standing("run-1", 13, entries(path)[-1].sha, sealed=True)
    assert path.stat().st_mode & 0o777 == 0o600


def test_every_line_is_canonical_whatever_the_arguments_are(recording: Recording) -> None:
    writer = recording.writer()
    odd = ["a\n{}", "\0", "\x1b[2J\x07", "\u2028\u2029", "\ud800", "sur\udcff", "x" * (1 << 20), b"\xff", 1e21, 2**80]
    for value in odd:
        writer.append("deny", "read", {"target": value}, result=value, origin="guest", lane=str(value)[:300])
        writer.append("effect", f"op{value!r}"[:500], value)
    writer.seal()
    lines = writer.path.read_bytes().split(b"\n")
    assert lines.pop() == b""
    assert len(lines) == 2 * len(odd) + 2
    assert all(is_canonical(line, json.loads(line)) for line in lines if b"1e+" not in line and b"12089" not in line)
    assert recording.verdict(writer.path).ok


def test_checkpoint_follows_after_256_records(recording: Recording) -> None:
    writer = recording.writer(clock=clock_of(100.0))
    for number in range(3 * CHECKPOINT_RECORDS):
        writer.append("observe", "fs.open_read", {"path": str(number)})
    writer.close()
    checkpoints = [entry.i for entry in entries(writer.path) if entry.op == "trace.checkpoint"]
    assert checkpoints == [256, 513, 770]


def test_checkpoint_follows_after_a_second_with_new_records_only(recording: Recording) -> None:
    writer = recording.writer(clock=clock_of(100.0, 100.2, 101.1, 101.3, 101.4, 102.5, 109.0))
    writer.append("observe", "net.resolve", {"host": "a"})
    writer.append("observe", "net.resolve", {"host": "b"})
    writer.tick()
    writer.append("observe", "net.resolve", {"host": "c"})
    writer.tick()
    writer.tick()
    writer.close()
    assert ops(writer.path) == [
        "run.start",
        "net.resolve",
        "net.resolve",
        "trace.checkpoint",
        "net.resolve",
        "trace.checkpoint",
    ]


def test_flushed_record_is_in_the_file_and_unflushed_ones_are_bounded(recording: Recording) -> None:
    writer = recording.writer(clock=clock_of(100.0))
    size = writer.path.stat().st_size
    writer.append("effect", "fs.write_text", {"path": "out/a"})
    writer.flush()
    assert ops(writer.path) == ["run.start", "fs.write_text"]
    assert writer.path.stat().st_size > size
    for _ in range(100):
        writer.append("effect", "fs.read_text", {"path": "a"}, result="x" * 2000)
    assert 100 * 2000 - writer.path.stat().st_size < 80_000
    writer.close()


def test_clock_that_goes_back_does_not_take_the_trace_back(recording: Recording) -> None:
    writer = recording.writer(clock=clock_of(100.5, 100.7, 50.0, 100.6, 100.75, 100.8))
    for _ in range(4):
        writer.append("effect", "clock.now", {})
    writer.flush()
    assert [entry.ts for entry in entries(writer.path)] == [100.5, 100.7, 100.7, 100.7, 100.75]
    writer.close()


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "directory", "pipe"])
def test_path_that_exists_is_refused_and_untouched(recording: Recording, kind: str) -> None:
    path = recording.directory / "trace0.jsonl"
    victim = recording.directory / "victim"
    match kind:
        case "file":
            path.write_text("mine")
        case "link":
            victim.write_text("mine")
            path.symlink_to(victim)
        case "dangling link":
            path.symlink_to(victim)
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
    before = path.lstat()
    with pytest.raises(TraceError, match="exists already") as caught:
        recording.writer()
    assert caught.value.hint
    assert (path.lstat().st_ino, path.lstat().st_size) == (before.st_ino, before.st_size)
    assert victim.exists() is (kind == "link")


def test_directory_that_is_a_link_or_missing_is_refused(recording: Recording, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    for name in ("linked", "missing"):
        recording.directory = tmp_path / name
        with pytest.raises(TraceError, match="cannot be made"):
            recording.writer()
    assert list((tmp_path / "real").iterdir()) == []


def test_full_disk_ends_recording_and_leaves_whole_lines(recording: Recording) -> None:
    writer = recording.writer()
    written = writer.path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (written + 1000, hard))
    try:
        writer.append("effect", "fs.read_text", {"path": "a"}, result="x" * 1500)
        with pytest.raises(TraceError, match="cannot be written") as caught:
            writer.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.hint
    assert writer.failed
    for attempt in (writer.flush, writer.checkpoint, writer.seal, lambda: writer.append("effect", "x", {})):
        with pytest.raises(TraceError):
            attempt()
    assert ops(writer.path) == ["run.start"]
    assert recording.verdict(writer.path).status is Status.UNSEALED


@pytest.mark.parametrize("change", ["append", "truncate"])
def test_file_that_somebody_else_changes_ends_recording_at_the_next_checkpoint(
    recording: Recording, change: str
) -> None:
    writer = recording.writer()
    writer.append("effect", "clock.now", {})
    writer.flush()
    if change == "append":
        with writer.path.open("ab") as file:
            file.write(b'{"op":"forged"}\n')
    else:
        os.truncate(writer.path, 10)
    with pytest.raises(TraceError, match="changed it"):
        writer.checkpoint()
    assert not recording.verdict(writer.path).ok


def test_trace_that_grows_too_long_ends_recording_and_can_be_sealed(recording: Recording) -> None:
    writer = recording.writer(max_bytes=300_000)

    def record_without_end() -> None:
        while True:
            writer.append("effect", "fs.read_text", {"path": "a"}, result="x" * 5000)

    with pytest.raises(TraceError, match="longer than 300000 bytes"):
        record_without_end()
    assert writer.path.stat().st_size < 400_000
    assert not writer.failed
    writer.append("meta", "run.end", {"returncode": 137})
    writer.seal()
    assert recording.verdict(writer.path).ok


def test_ledger_that_cannot_be_written_ends_recording(recording: Recording) -> None:
    writer = recording.writer()
    recording.store.ledger_path.unlink()
    recording.store.ledger_path.mkdir()
    with pytest.raises(TraceError, match=r"ledger\.jsonl"):
        writer.seal()
    assert writer.failed


def test_kind_and_origin_that_do_not_exist_are_a_bug_of_the_caller(recording: Recording) -> None:
    writer = recording.writer()
    with pytest.raises(ValueError, match="no record"):
        writer.append("note", "x", {})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no record"):
        writer.append("effect", "x", {}, origin="nobody")  # type: ignore[arg-type]
    writer.close()


def test_counts_say_how_many_records_of_each_kind_there_are(recording: Recording) -> None:
    writer = recording.writer()
    for kind, number in (("effect", 3), ("observe", 2), ("deny", 1)):
        for _ in range(number):
            writer.append(kind, "x", {})  # type: ignore[arg-type]
    assert (writer.counts["effect"], writer.counts["observe"], writer.counts["deny"]) == (3, 2, 1)
    assert writer.seal().count == 8


def test_signature_record_states_key_and_signature_in_base64(recording: Recording) -> None:
    seal = entries(recording.trace(1))[-1]
    assert seal.op == "trace.seal"
    assert seal.args["key"] == recording.key.public.id
    assert len(base64.b64decode(seal.args["sig"], validate=True)) == 64


def test_writer_closes_its_file_when_the_first_record_cannot_be_written(recording: Recording) -> None:
    recording.store.ledger_path.mkdir()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(TraceError):
        recording.writer()
    assert len(os.listdir("/proc/self/fd")) == before
    assert stat.S_ISREG((recording.directory / "trace0.jsonl").stat().st_mode)
