# SPDX-License-Identifier: MIT
"""Events are told in steps, and none is lost in the count."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agentbox.egress.events import EgressEvent, Repeats

DENIED = EgressEvent("net.resolve", "evil.test", False, rule_missing="net: evil.test", hint="add it")


def test_refusal_is_the_object_that_an_agent_reads() -> None:
    assert DENIED.refusal() == {
        "error": "policy_denied",
        "host": "evil.test",
        "rule_missing": "net: evil.test",
        "hint": "add it",
        "retry": False,
    }


def test_flood_of_one_denial_makes_few_events_that_add_up() -> None:
    told: list[EgressEvent] = []
    repeats = Repeats(told.append)
    for _ in range(12_345):
        repeats(DENIED)
    assert [event.count for event in told] == [1, 9, 90, 900, 9000]
    repeats.flush()
    assert sum(event.count for event in told) == 12_345
    repeats.flush()
    assert len(told) == 6


def test_flood_of_different_denials_makes_few_events_that_add_up() -> None:
    told: list[EgressEvent] = []
    repeats = Repeats(told.append, limit=10)
    for number in range(5000):
        repeats(replace(DENIED, host=f"{number}.evil.test"))
    repeats.flush()
    assert len(told) == 10 + 5
    assert sum(event.count for event in told) == 5000
    assert told[-1].host == "4999.evil.test"


def test_first_event_of_each_kind_is_told_at_once() -> None:
    told: list[EgressEvent] = []
    repeats = Repeats(told.append)
    kinds = [DENIED, replace(DENIED, host="b"), replace(DENIED, port=1), replace(DENIED, op="net.connect")]
    for kind in kinds:
        repeats(kind)
    assert told == kinds


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 50), st.integers(0, 9)), max_size=80))
def test_counts_and_bytes_add_up_whatever_comes(given_events: list[tuple[str, int, int]]) -> None:
    told: list[EgressEvent] = []
    repeats = Repeats(told.append, limit=3)
    for host, count, size in given_events:
        repeats(replace(DENIED, host=host, count=count, bytes_up=size, bytes_down=2 * size))
    repeats.flush()
    assert sum(event.count for event in told) == sum(count for _, count, _ in given_events)
    assert sum(event.bytes_up for event in told) == sum(size for _, _, size in given_events)
    assert sum(event.bytes_down for event in told) == 2 * sum(size for _, _, size in given_events)
