# SPDX-License-Identifier: MIT
"""A short slice of every fuzz target, and that the driver finds what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import driver
from tests.fuzz.driver import fuzz
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

SLICE_SECONDS = 2.0


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_input_of_a_slice_breaks_the_parser(target: Target) -> None:
    tried, finding = fuzz(target, SLICE_SECONDS, seed=20_261_130)
    assert finding is None, f"{finding.data!r}\n{finding.failure}" if finding else ""
    assert tried > len(target.seeds)


def test_names_of_targets_are_different() -> None:
    assert len({target.name for target in TARGETS}) == len(TARGETS)


def _fails_at_a_zero(data: bytes) -> None:
    if b"\0" in data:
        raise IndexError("a zero")


def test_fault_is_found_and_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    target = Target("faulty", _fails_at_a_zero, (b"abc",))
    assert driver.main([target], ["--seconds", "30"]) == 1
    (kept,) = (tmp_path / ".fuzz").iterdir()
    assert b"\0" in kept.read_bytes()
    assert driver.main([target], ["--input", str(kept), "faulty"]) == 1
    assert "a zero" in capsys.readouterr().out


def test_hang_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(data: bytes) -> None:
        while True:
            pass

    monkeypatch.setattr(driver, "HANG_SECONDS", 0.05)
    _, finding = fuzz(Target("hanging", hang, (b"a",)), 30.0, seed=1)
    assert finding is not None
    assert "HangError" in finding.failure


def test_same_seed_tries_the_same_inputs() -> None:
    runs: list[list[bytes]] = [[], []]
    for seen in runs:
        fuzz(Target("kept", seen.append, (b"one", b"two"), (b"token",)), 0.05, seed=7)
    shorter = min(map(len, runs))
    assert shorter > 2
    assert runs[0][:shorter] == runs[1][:shorter]
