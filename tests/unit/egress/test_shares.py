# SPDX-License-Identifier: MIT
"""However greedy the boxes of a process are, each keeps room of its own, and together they stay below the limit."""

from __future__ import annotations

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbox.egress.shares import Budget, Share


def fill(share: Share) -> int:
    """Take as much as there is; how much that was."""
    taken = 0
    while share.has_room:
        share.take()
        taken += 1
    return taken


def test_a_box_alone_may_have_everything() -> None:
    assert fill(Budget(1000, 1).share()) == 1000


def test_a_greedy_box_leaves_room_for_every_other() -> None:
    budget = Budget(1000, 10)
    greedy = fill(budget.share())
    assert greedy == 50 + 250
    others = [fill(budget.share()) for _ in range(9)]
    assert min(others) >= 50
    assert greedy + sum(others) <= 1000


def test_greedy_boxes_that_take_turns_get_the_same() -> None:
    budget = Budget(1000, 10)
    shares = [budget.share() for _ in range(2)]
    while any(share.has_room for share in shares):
        for share in shares:
            if share.has_room:
                share.take()
    assert abs(shares[0].held - shares[1].held) <= 1
    assert shares[0].held >= 50 + 1000 // 2 // 3 - 1


def test_what_a_box_gives_back_others_may_take() -> None:
    budget = Budget(100, 2)
    first, second = budget.share(), budget.share()
    fill(first)
    few = fill(second)
    for _ in range(first.held):
        first.give_back()
    assert fill(second) > 0
    second.end()
    second.end()
    assert fill(budget.share()) > few


@given(
    st.integers(1, 300),
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["take", "give", "end"])), max_size=400),
)
def test_no_box_is_ever_without_its_own_part_and_the_sum_holds(
    connections: int, boxes: int, steps: list[tuple[int, str]]
) -> None:
    budget = Budget(connections, boxes)
    shares = [budget.share() for _ in range(boxes)]
    for number, step in steps:
        share = shares[number % boxes]
        if step == "take" and share.has_room:
            share.take()
        elif step == "give" and share.held:
            share.give_back()
        elif step == "end":
            share.end()
            shares[number % boxes] = budget.share()
        assert sum(one.held for one in shares) <= max(connections, boxes)
        assert all(one.has_room for one in shares if one.held < budget.reserved)
    for share in shares:
        share.end()
    again = budget.share()
    assert fill(again) == fill(Budget(connections, boxes).share())


@pytest.mark.parametrize("boxes", [1, 64])
def test_this_process_s_limit_of_open_files_is_never_passed(boxes: int) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    budget = Budget.of_this_process(boxes)
    held = sum(fill(budget.share()) for _ in range(boxes))
    assert 2 * held < max(soft, 4 * boxes)
