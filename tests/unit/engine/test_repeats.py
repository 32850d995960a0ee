# SPDX-License-Identifier: MIT
"""Equal denials make few records, and the counts add up."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentbox.engine.repeats import MAX_TOLD_APART, MAX_TOLD_APART_BYTES, Repeats


class Trace:
    def __init__(self) -> None:
        self.records: list[tuple[str, str, dict[str, Any], str, int | None, str | None]] = []
        self.repeats = Repeats(self._append)

    def _append(self, *record: Any) -> int:
        self.records.append(record)
        return len(self.records) - 1

    def deny(self, target: str, *, op: str = "net", pid: int = 7, origin: Any = "guest", **more: Any) -> int | None:
        return self.repeats.add("deny", op, {"target": target, **more}, origin, pid, "main")

    def total(self) -> int:
        return sum(args.get("count", 1) for _, _, args, *_ in self.records)


def test_a_flood_of_one_denial_makes_few_records_that_add_up() -> None:
    trace = Trace()
    for _ in range(12_345):
        trace.deny("192.0.2.1:53")
    assert [args.get("count") for _, _, args, *_ in trace.records] == [None, 9, 90, 900, 9000]
    trace.repeats.flush()
    assert trace.total() == 12_345
    trace.repeats.flush()
    assert trace.total() == 12_345


def test_the_first_of_a_kind_is_recorded_at_once_as_it_came() -> None:
    trace = Trace()
    assert trace.deny("/a", op="read") == 0
    assert trace.deny("/b", op="read") == 1
    assert trace.deny("/a", op="write") == 2
    assert trace.deny("/a", op="read", origin="kernel") == 3
    assert trace.deny("/a", op="read", enforced=False) == 4
    assert trace.deny("/a", op="read") is None
    assert trace.records[0] == ("deny", "read", {"target": "/a"}, "guest", 7, "main")


def test_a_record_that_stands_for_many_names_the_latest_process() -> None:
    trace = Trace()
    for pid in range(10):
        trace.deny("/a", pid=pid)
    assert [(args.get("count"), pid) for _, _, args, _, pid, _ in trace.records] == [(None, 0), (9, 9)]


def test_a_flood_of_different_denials_makes_a_bounded_number_of_records() -> None:
    trace = Trace()
    for port in range(20_000):
        trace.deny(f"192.0.2.1:{port}")
    trace.repeats.flush()
    assert MAX_TOLD_APART < len(trace.records) < MAX_TOLD_APART + 10
    assert trace.total() == 20_000
    assert trace.records[-1][2]["target"] == "192.0.2.1:19999"


def test_what_is_told_apart_is_bounded_in_bytes() -> None:
    trace = Trace()
    for number in range(200):
        trace.deny(f"{number}" + "x" * 60_000)
    assert len(trace.records) < MAX_TOLD_APART_BYTES // 60_000 + 5
    trace.repeats.flush()
    assert trace.total() == 200


def test_a_guest_cannot_count_for_the_host() -> None:
    trace = Trace()
    trace.deny("/a", count=1_000_000)
    trace.deny("/a", count=-5)
    trace.deny("/a")
    trace.repeats.flush()
    assert [args for _, _, args, *_ in trace.records] == [{"target": "/a"}, {"target": "/a", "count": 2}]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 300)), max_size=20))
def test_records_and_what_waits_for_one_always_add_up(tries: list[tuple[str, int]]) -> None:
    trace = Trace()
    made = 0
    for target, times in tries:
        for _ in range(times):
            trace.deny(target)
        made += times
        assert len(trace.records) + trace.repeats.unrecorded["deny"] == made
    trace.repeats.flush()
    assert trace.total() == len(trace.records) + trace.repeats.unrecorded["deny"] == made
