# SPDX-License-Identifier: MIT
"""Files that are forced to disk beside their runs: in order, all of them, and never more open than is allowed."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest

from agentbox.trace import syncing
from agentbox.trace.syncing import DiskSync


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were forced, in that order."""
    names: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: names.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    return names


def opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)


def test_everything_that_was_taken_is_forced_in_order_when_close_returns(tmp_path: Path, forced: list[str]) -> None:
    sync = DiskSync()
    descriptors = [opened(tmp_path / str(number)) for number in range(20)]
    for descriptor in descriptors:
        sync.take(descriptor)
    sync.close()
    assert forced == [str(tmp_path / str(number)) for number in range(20)]
    for descriptor in descriptors:
        with pytest.raises(OSError):
            os.fstat(descriptor)


def test_what_comes_after_the_close_is_forced_at_once(tmp_path: Path, forced: list[str]) -> None:
    sync = DiskSync()
    sync.close()
    sync.take(opened(tmp_path / "late"))
    assert forced == [str(tmp_path / "late")]


def test_whoever_brings_more_than_may_wait_waits_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def slow(descriptor: int) -> None:
        begun.set()
        go_on.wait()

    monkeypatch.setattr(os, "fdatasync", slow)
    monkeypatch.setattr(syncing, "MAX_WAITING", 2)
    sync = DiskSync()
    sync.take(opened(tmp_path / "first"))
    begun.wait()
    sync.take(opened(tmp_path / "second"))
    sync.take(opened(tmp_path / "third"))
    other = threading.Thread(target=lambda: (sync.take(opened(tmp_path / "fourth")), done.set()))
    other.start()
    assert not done.is_set()
    go_on.set()
    other.join()
    assert done.is_set()
    sync.close()


def test_disk_that_fails_is_logged_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    sync = DiskSync()
    with caplog.at_level(logging.ERROR, "agentbox.trace"):
        sync.take(opened(tmp_path / "one"))
        sync.take(opened(tmp_path / "two"))
        sync.close()
    assert [message for message in caplog.messages if "Input/output error" in message] == caplog.messages
    assert len(caplog.messages) == 2
