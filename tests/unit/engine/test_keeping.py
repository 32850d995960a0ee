# SPDX-License-Identifier: MIT
"""Bytes beside a trace: kept by their hash, in bounds, and believed only when they are what the hash says."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentbox.engine import keeping as module
from agentbox.engine.keeping import Keeping, Kept, find_blobs
from agentbox.engine.processes import Processes, image_of

DATA = b"0123456789" * 10
NAME = hashlib.sha256(DATA).hexdigest()


def _piece(data: bytes, key: str = "k") -> dict[str, str]:
    return {"key": key, "b64": base64.b64encode(data).decode()}


def test_pieces_become_one_file_and_the_record_has_its_hash(tmp_path: Path) -> None:
    keeping = Keeping(str(tmp_path / "blobs"))
    keeping.piece(1, _piece(DATA[:30]))
    keeping.piece(1, _piece(DATA[30:]))
    assert keeping.resolved(1, {"stdout": {"kept": "k"}, "code": 0}) == {
        "stdout": {"kept": NAME, "bytes": 100},
        "code": 0,
    }
    kept = Kept(str(tmp_path / "blobs"))
    assert kept.read(NAME) == DATA
    assert kept.bytes_of({"kept": NAME, "bytes": 100}) == DATA


def test_keys_belong_to_a_connection_and_end_with_it(tmp_path: Path) -> None:
    keeping = Keeping(str(tmp_path / "blobs"))
    keeping.piece(1, _piece(DATA))
    missing = {"kept": "", "bytes": 0, "cut": True}
    assert keeping.resolved(2, {"kept": "k"}) == missing
    keeping.forget(1)
    assert keeping.resolved(1, {"kept": "k"}) == missing


def test_too_much_is_cut_and_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT_BYTES", 50)
    keeping = Keeping(str(tmp_path / "blobs"))
    keeping.piece(1, _piece(DATA))
    told = keeping.resolved(1, {"kept": "k"})
    assert (told["bytes"], told["cut"]) == (100, True)
    assert Kept(str(tmp_path / "blobs")).bytes_of(told) is None


@pytest.mark.parametrize("args", [{}, {"key": 1, "b64": ""}, {"key": "k", "b64": "?"}, {"key": "k" * 65, "b64": ""}])
def test_pieces_that_no_guard_sends_are_passed_over(tmp_path: Path, args: dict[str, object]) -> None:
    keeping = Keeping(str(tmp_path / "blobs"))
    keeping.piece(1, args)
    assert keeping.resolved(1, {"kept": "k"})["bytes"] == 0
    assert not (tmp_path / "blobs").exists()


@pytest.mark.parametrize("name", ["", "..", "../" + NAME[3:], NAME.upper() + "/", NAME[:-1]])
def test_only_a_hash_names_kept_bytes(tmp_path: Path, name: str) -> None:
    Keeping(str(tmp_path)).keep(DATA)
    assert Kept(str(tmp_path)).read(name) is None


def test_changed_bytes_are_not_believed(tmp_path: Path) -> None:
    Keeping(str(tmp_path)).keep(DATA)
    (tmp_path / NAME).write_bytes(DATA + b"!")
    assert Kept(str(tmp_path)).read(NAME) is None


def test_the_bytes_of_a_trace_are_found_beside_it_or_in_its_directory(tmp_path: Path) -> None:
    run = tmp_path / ".agentbox" / "runs" / "1"
    run.mkdir(parents=True)
    (tmp_path / "trace.jsonl").symlink_to(run / "trace.jsonl")
    (run / "trace.jsonl").touch()
    assert find_blobs(str(tmp_path / "trace.jsonl")) == str(run / "blobs")
    (tmp_path / "named.jsonl.blobs").mkdir()
    assert find_blobs(str(tmp_path / "named.jsonl")) == str(tmp_path / "named.jsonl.blobs")


@pytest.mark.linux
def test_forks_are_the_command_and_what_it_starts_is_not() -> None:
    code = (
        "import os, subprocess, sys\n"
        "pid = os.fork()\n"
        "if not pid:\n    sys.stdin.read(); os._exit(0)\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'], stdin=0)\n"
        "print(pid, other.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    root = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert root.stdout is not None
        forked, other = map(int, root.stdout.readline().split())
        processes = Processes()
        assert processes.is_other_program(forked) is False
        processes.started(root.pid)
        processes.started(other)
        assert processes.is_other_program(forked) is False
        assert processes.is_other_program(root.pid) is False
        assert processes.is_other_program(other) is True
        assert image_of(os.getpid()) != image_of(root.pid)
    finally:
        root.communicate("")


def test_bytes_are_kept_beside_a_trace_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = Keeping("trace.jsonl.blobs").keep(DATA)
    assert Kept("trace.jsonl.blobs").read(name) == DATA


def test_what_could_not_be_written_is_said_to_be_cut(tmp_path: Path) -> None:
    keeping = Keeping(str(tmp_path / "missing" / "blobs"))
    keeping.piece(1, _piece(DATA))
    assert keeping.resolved(1, {"kept": "k"}) == {"kept": NAME, "bytes": 100, "cut": True}


def test_what_no_recorded_run_left_is_not_read(tmp_path: Path) -> None:
    kept = Kept(str(tmp_path))
    (tmp_path / NAME).symlink_to("/dev/zero")
    assert kept.read(NAME) is None
    (tmp_path / NAME).unlink()
    os.mkfifo(tmp_path / NAME)
    assert kept.read(NAME) is None
    (tmp_path / NAME).unlink()
    with (tmp_path / NAME).open("wb") as file:
        file.truncate(1 << 40)
    assert kept.read(NAME) is None
