# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

from agentbox.errors import OverloadedError
from agentbox.server.body import BODIES_AT_ONCE, BodyBudget
from agentbox.server.problems import Problem


def test_body_larger_than_the_limit_is_refused_while_it_is_read() -> None:
    with BodyBudget(100).lease("a") as lease:
        lease.take(60)
        with pytest.raises(Problem) as caught:
            lease.take(60)
    assert caught.value.status == 413


def test_all_bodies_together_are_bounded() -> None:
    budget = BodyBudget(100)
    leases = [budget.lease("a") for _ in range(BODIES_AT_ONCE)]
    for context in leases:
        context.__enter__().take(100)
    with budget.lease("a") as one_more, pytest.raises(OverloadedError):
        one_more.take(1)


def test_bytes_go_back_when_a_request_ends() -> None:
    budget = BodyBudget(100)
    before = budget.free_bytes
    with budget.lease("a") as lease:
        lease.take(80)
        assert budget.free_bytes == before - 80
    assert budget.free_bytes == before


def test_a_key_that_floods_leaves_room_for_others() -> None:
    budget = BodyBudget(100, shared=True)
    held = [budget.lease("flood") for _ in range(BODIES_AT_ONCE // 2)]
    for lease in held:
        lease.take(100)
    with pytest.raises(OverloadedError):
        budget.lease("flood").take(100)
    for other in ("second", "third"):
        budget.lease(other).take(100)
    for lease in held:
        lease.__exit__(None, None, None)
    assert budget.held_bytes["flood"] == 0


def test_a_lease_that_was_handed_over_holds_on_until_the_new_one_ends() -> None:
    budget = BodyBudget(100)
    before = budget.free_bytes
    with budget.lease("a") as lease:
        lease.take(80)
        later = lease.handed_over()
    assert budget.free_bytes == before - 80
    with later:
        pass
    assert budget.free_bytes == before
