# SPDX-License-Identifier: MIT
"""The ledger: appended by many, never damaged by one that was killed, and asked for the farthest standing."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentbox.errors import TraceError
from agentbox.trace.ledger import Ledger, Standing


def standing(run: str, count: int, *, sealed: bool = False) -> Standing:
    return Standing(run, count, f"{count:064x}", sealed)


def test_farthest_standing_of_a_run_is_found(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.find("a") is None
    for one in (standing("a", 1), standing("b", 1), standing("a", 300), standing("a", 301, sealed=True)):
        ledger.note(one)
    assert ledger.find("a") == standing("a", 301, sealed=True)
    assert ledger.find("b") == standing("b", 1)
    assert ledger.find("c") is None


def test_shorter_standing_that_was_added_later_changes_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.note(standing("a", 9, sealed=True))
    ledger.note(standing("a", 2))
    assert ledger.find("a") == standing("a", 9, sealed=True)


def test_torn_and_damaged_lines_do_not_hide_the_others(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.note(standing("a", 5, sealed=True))
    with ledger.path.open("ab") as file:
        file.write(b'\xff\xfe "a"\n[1,"a"]\n{"run":"a","count":"x"}\n{"count":6,"head":"00","run":"a","se')
    ledger.note(standing("b", 7, sealed=True))
    assert ledger.find("a") == standing("a", 5, sealed=True)
    assert ledger.find("b") == standing("b", 7, sealed=True)


def test_run_with_odd_characters_is_found_by_its_exact_name(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.note(standing('x","run":"y', 3))
    ledger.note(standing("ü\n", 4))
    assert ledger.find("y") is None
    assert ledger.find('x","run":"y') == standing('x","run":"y', 3)
    assert ledger.find("ü\n") == standing("ü\n", 4)


def test_lines_of_many_writers_stay_whole(tmp_path: Path) -> None:
    def note(number: int) -> None:
        Ledger(tmp_path / "ledger.jsonl").note(standing(f"run-{number}", number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(note, range(200)))
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert all(ledger.find(f"run-{number}") == standing(f"run-{number}", number) for number in range(200))


def test_link_in_the_place_of_the_ledger_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "ledger.jsonl").symlink_to(victim)
    with pytest.raises(TraceError):
        Ledger(tmp_path / "ledger.jsonl").note(standing("a", 1))
    assert victim.read_text() == "mine"


def test_forgotten_runs_are_gone_and_the_others_stay(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for name in ("a", "b", "a", "c"):
        ledger.note(standing(name, 1))
    ledger.forget({"a", "c"})
    assert [ledger.find(name) for name in "abc"] == [None, standing("b", 1), None]
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.jsonl"]
    assert ledger.path.stat().st_mode & 0o777 == 0o600


def test_nothing_that_is_noted_while_another_forgets_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"

    def note(number: int) -> None:
        for count in range(50):
            Ledger(path).note(standing(f"{number}-{count}", 1))

    with ThreadPoolExecutor(4) as threads:
        noting = [threads.submit(note, number) for number in range(4)]
        for _ in range(20):
            Ledger(path).forget({"nobody"})
        for one in noting:
            one.result()
    assert len(path.read_text(encoding="utf-8").splitlines()) == 200


def test_a_file_that_is_yet_to_be_forced_to_disk_holds_nobody_up(tmp_path: Path) -> None:
    waiting: list[int] = []
    ledger = Ledger(tmp_path / "ledger.jsonl", force=waiting.append)
    for count in (1, 2, 3):
        ledger.note(Standing("run", count, "ab" * 32, sealed=True), durable=True)
    for descriptor in waiting:
        os.close(descriptor)
    found = ledger.find("run")
    assert found is not None
    assert found.count == 3
    assert len(waiting) == 3
