# SPDX-License-Identifier: MIT
"""Processes that are stopped and go on."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

import pytest

from agentbox.linux import freezing
from agentbox.linux.freezing import Freezer
from tests.conftest import not_here

COUNTING = "i=0; while :; do i=$((i+1)); echo $i; done"


@pytest.fixture
def counting() -> Iterator[subprocess.Popen[bytes]]:
    """A shell that counts, and a child of it that does."""
    made = subprocess.Popen(["sh", "-c", f"({COUNTING}) & {COUNTING}"], stdout=subprocess.DEVNULL, process_group=0)
    yield made
    with contextlib.suppress(ProcessLookupError):
        os.killpg(made.pid, 9)
    made.wait()


def family(first: int) -> set[int]:
    with open(f"/proc/{first}/task/{first}/children", encoding="ascii") as file:
        return {first, *map(int, file.read().split())}


def ticks(pids: set[int]) -> list[tuple[str, str]]:
    """User and system time of each."""
    found = []
    for pid in sorted(pids):
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        found.append((fields[11], fields[12]))
    return found


def until_more(pids: set[int], before: list[tuple[str, str]]) -> None:
    """Wait until each has used processor time."""
    while any(now == then for now, then in zip(ticks(pids), before, strict=True)):
        os.sched_yield()


@pytest.mark.parametrize("by", ["control group", "signal"])
def test_what_is_frozen_uses_no_processor_time_until_it_goes_on(
    counting: subprocess.Popen[bytes], by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "signal":
        monkeypatch.setattr(freezing, "_base", lambda: None)
    elif freezing._base() is None:
        not_here("there is no control group of version 2 that may be used")
    while len(family(counting.pid)) < 2:
        os.sched_yield()
    pids = family(counting.pid)
    freezer = Freezer("paused-test", lambda: family(counting.pid))
    freezer.freeze()
    frozen = ticks(pids)
    bystander = ticks({os.getpid()})
    until_more({os.getpid()}, bystander)
    assert ticks(pids) == frozen
    freezer.thaw()
    until_more(pids, frozen)
    os.killpg(counting.pid, 9)
    counting.wait()
    freezer.close()
    assert not freezer._group


def test_what_is_killed_while_it_is_frozen_ends(counting: subprocess.Popen[bytes]) -> None:
    if freezing._base() is None:
        not_here("there is no control group of version 2 that may be used")
    freezer = Freezer("paused-killed", lambda: family(counting.pid))
    freezer.freeze()
    os.killpg(counting.pid, 9)
    assert counting.wait(30) == -9
    freezer.close()


def test_processes_that_cannot_be_stopped_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezing, "_base", lambda: None)
    monkeypatch.setattr(freezing, "_PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(freezing, "_state", lambda pid: "R")
    sleeping = subprocess.Popen(["sleep", "1000"])
    try:
        with pytest.raises(TimeoutError, match="cannot be stopped"):
            Freezer("never", lambda: {sleeping.pid}).freeze()
        monkeypatch.undo()
        while freezing._state(sleeping.pid) == "T":
            os.sched_yield()
    finally:
        sleeping.kill()
        sleeping.wait()
