# SPDX-License-Identifier: MIT
"""Rounds in which every case has its turn."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.interleaved import Case, NotHereError, interleave, reason
from benchmarks.pairs import Pair, compared
from benchmarks.preparing import Wish, prepared


def noting(name: str, seen: list[str]) -> Callable[[], float]:
    def call() -> float:
        seen.append(name)
        return float(len(seen))

    return call


def test_every_round_has_every_case_as_often_as_it_asks_for() -> None:
    seen: list[str] = []
    cases = [Case("a", noting("a", seen)), Case("b", noting("b", seen), samples=3)]
    taken = interleave(cases, 5, warm_up=False)
    for start in range(0, 20, 4):
        assert sorted(seen[start : start + 4]) == ["a", "b", "b", "b"]
    assert [len(values) for values in taken.rounds["b"]] == [3] * 5


def test_order_changes_from_round_to_round() -> None:
    seen: list[str] = []
    interleave([Case(name, noting(name, seen)) for name in "abcd"], 10, warm_up=False)
    assert len({tuple(seen[start : start + 4]) for start in range(0, 40, 4)}) > 1


def test_first_round_is_thrown_away() -> None:
    seen: list[str] = []
    taken = interleave([Case("a", noting("a", seen))], 2)
    assert taken.rounds == {"a": [[2.0], [3.0]]}


def test_case_that_fails_is_left_out_and_says_why_while_the_others_go_on() -> None:
    left = iter([1.0, 2.0])

    def fails() -> float:
        try:
            return next(left)
        except StopIteration:
            raise RuntimeError("it\nbroke") from None

    taken = interleave([Case("good", lambda: 1.0), Case("bad", fails)], 4, warm_up=False)
    assert taken.failed == {"bad": "RuntimeError: it broke"}
    assert taken.rounds == {"good": [[1.0]] * 4}


def test_reason_of_what_is_not_here_is_its_own_words() -> None:
    assert reason(NotHereError("bwrap is not installed")) == "bwrap is not installed"


def test_what_cannot_be_prepared_becomes_a_row_that_says_why() -> None:
    def missing() -> float:
        raise NotHereError("runsc is not installed")

    def broken() -> float:
        raise OSError("no server")

    made, rows = prepared(
        [
            Wish("there", lambda: 1.0, ours=True),
            Wish("ours, not here", missing, ours=True),
            Wish("ours, broken", broken, ours=True),
            Wish("theirs, broken", broken),
        ]
    )
    assert [(wish.name, value) for wish, value in made] == [("there", 1.0)]
    assert {name: (row.missing, row.failed) for name, row in rows.items()} == {
        "ours, not here": ("runsc is not installed", ""),
        "ours, broken": ("", "OSError: no server"),
        "theirs, broken": ("OSError: no server", ""),
    }


def test_pair_measures_both_sides_and_divides_ours_by_the_other() -> None:
    (row,) = compared([Pair("read", "us", lambda: 6.0, lambda: 2.0, "bare", "<= 2.5")], 3)
    assert row.value is not None
    assert row.ratio is not None
    assert (row.value.median, row.ratio.median, row.against, row.wanted) == (6.0, 3.0, "bare", "<= 2.5")
    assert row.extra == {"bare, us": 2.0}


def test_sides_of_a_pair_take_turns_in_being_first() -> None:
    seen: list[str] = []
    compared([Pair("read", "us", noting("ours", seen), noting("other", seen), "bare")], 4, warm_up=False)
    assert seen == ["ours", "other", "other", "ours"] * 2
