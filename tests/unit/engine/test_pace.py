# SPDX-License-Identifier: MIT
from __future__ import annotations

from agentbox.engine.pace import LONGEST_SECONDS, REMEMBERED, Pace


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_nothing_measured_means_the_shortest_time() -> None:
    assert Pace(Clock()).seconds_until(1000) == 1


def test_two_ends_a_second_are_half_a_second_for_each() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.begin()
    for _ in range(10):
        clock.now += 0.5
        pace.count()
    assert [pace.seconds_until(ends) for ends in (1, 4, 5)] == [1, 2, 3]


def test_only_the_last_ends_count() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.begin()
    for step in [100.0] * 10 + [2.0] * (REMEMBERED + 1):
        clock.now += step
        pace.count()
    assert pace.seconds_until(5) == 10


def test_time_is_bounded() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.begin()
    clock.now += 3600
    assert pace.seconds_until(9) == LONGEST_SECONDS


def test_a_new_crowd_is_not_judged_by_an_old_one() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.begin()
    clock.now += 3600
    pace.begin()
    assert pace.seconds_until(9) == 1
