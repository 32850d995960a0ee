# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

from agentbox.errors import OverloadedError
from agentbox.server.body import BODIES_AT_ONCE, BodyBudget
from agentbox.server.problems import Problem


def test_body_larger_than_the_limit_is_refused_while_it_is_read() -> None:
    with BodyBudget(100).lease() as lease:
        lease.take(60)
        with pytest.raises(Problem) as caught:
            lease.take(60)
    assert caught.value.status == 413


def test_all_bodies_together_are_bounded() -> None:
    budget = BodyBudget(100)
    leases = [budget.lease() for _ in range(BODIES_AT_ONCE)]
    for context in leases:
        context.__enter__().take(100)
    with budget.lease() as one_more, pytest.raises(OverloadedError):
        one_more.take(1)


def test_bytes_go_back_when_a_request_ends() -> None:
    budget = BodyBudget(100)
    before = budget.free_bytes
    with budget.lease() as lease:
        lease.take(80)
        assert budget.free_bytes == before - 80
    assert budget.free_bytes == before
