# SPDX-License-Identifier: MIT
"""The arithmetic of benchmarks."""

from __future__ import annotations

import random
import statistics

import pytest

from benchmarks.spread import Spread, percentile, ratio_in_rounds


def test_percentiles_of_a_line_lie_on_it() -> None:
    values = [float(number) for number in range(101)]
    random.Random(1).shuffle(values)
    assert [percentile(values, percent) for percent in (0, 10, 50, 99, 100)] == [0, 10, 50, 99, 100]


def test_percentile_between_two_values_is_taken_in_proportion() -> None:
    assert percentile([10.0, 20.0], 25) == 12.5


def test_percentiles_are_those_of_the_standard_library() -> None:
    values = [random.Random(2).random() for _ in range(37)]
    deciles = statistics.quantiles(values, n=10, method="inclusive")
    assert [percentile(values, 10 * tenth) for tenth in range(1, 10)] == pytest.approx(deciles)


def test_one_value_is_its_own_spread() -> None:
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0, 1)


@pytest.mark.parametrize("of", [Spread.of, lambda values: percentile(values, 50)])
def test_no_values_have_no_spread(of) -> None:
    with pytest.raises((ValueError, statistics.StatisticsError)):
        of([])


def test_values_of_all_rounds_make_one_spread() -> None:
    assert Spread.of_rounds([[1.0, 2.0], [3.0], [4.0, 5.0]]) == Spread(3.0, 1.4, 4.6, 5)


def test_ratio_is_taken_inside_each_round_so_that_a_busy_round_does_not_count_double() -> None:
    # The second round was ten times as slow for both.
    mine, theirs = [[2.0], [20.0], [2.0]], [[1.0], [10.0], [1.0]]
    assert ratio_in_rounds(mine, theirs) == Spread(2.0, 2.0, 2.0, 3)


def test_ratio_of_a_round_is_that_of_its_medians() -> None:
    assert ratio_in_rounds([[1.0, 9.0, 2.0]], [[4.0, 4.0, 400.0]]).median == 0.5


def test_rounds_that_differ_in_number_have_no_ratio() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratio_in_rounds([[1.0], [1.0]], [[1.0]])
