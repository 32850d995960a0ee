# SPDX-License-Identifier: MIT
from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbox.models import Layer
from agentbox.policy.decision import Counters
from agentbox.policy.document import Conjunction, intersect
from agentbox.policy.evaluation import ANSWERS, decide
from agentbox.policy.parser import parse
from agentbox.policy.questions import Connect, Env, Exec, Read, Resolve, Unix, Write

TEXT = """
read: ./data, ./**/*.py
write: ./out max=1KB
read-once: ./k
net: *.test @2/min, 10.0.0.1:80, cidr/fd00::/8, unix:/run/*, unix:@a*
exec: git status
env: A_*
deny: read ./data/x
deny: net evil.test
deny: env *B
protect: on
"""
POLICY = parse(TEXT, root="/w", find_program=lambda name: f"/usr/bin/{name}")
ANYTHING: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.tuples(st.text()),
    st.lists(st.text()),
    st.booleans(),
)
PATHS = st.lists(st.sampled_from(["data", "out", "k", "x", "a.py", "..", ".", "", ".git", "hooks", "\0"])).map("/".join)


@given(st.sampled_from(sorted(ANSWERS, key=str)), st.lists(ANYTHING, min_size=4, max_size=4), st.booleans())
def test_whatever_is_asked_the_answer_is_a_verdict(kind: Any, values: list[Any], counted: bool) -> None:
    question = kind(*values[: len(kind.__annotations__)])
    decision = decide(POLICY, question, Counters() if counted else None)
    assert decision.allowed in (True, False)
    assert decision.reason
    assert decision.layer_hint in set(Layer)


@given(ANYTHING)
def test_what_is_no_question_is_denied(thing: Any) -> None:
    assert not decide(POLICY, thing).allowed


@given(PATHS)
def test_path_that_is_not_resolved_is_denied(path: str) -> None:
    plain = path.startswith("/") and not {"", ".", ".."} & set(path[1:].split("/")) and "\0" not in path
    if not plain and path != "/":
        assert not decide(parse("read: /\nwrite: /", root="/"), Read(path)).allowed


@given(PATHS.map(lambda path: f"/w/{path}"))
def test_what_may_be_written_may_be_read(path: str) -> None:
    if decide(POLICY, Write(path)).allowed:
        assert decide(POLICY, Read(path)).allowed


@given(PATHS.map(lambda path: f"/w/{path}"))
def test_a_ceiling_never_widens(path: str) -> None:
    ceiling = parse("read: ./data\nwrite: .", root="/w")
    both = intersect(POLICY, ceiling)
    for question in (Read(path), Write(path)):
        alone = decide(POLICY, question).allowed and decide(ceiling, question).allowed
        assert decide(both, question).allowed == alone


def test_nothing_is_allowed_by_no_policies() -> None:
    assert not decide(Conjunction(()), Read("/")).allowed


def test_denial_leaves_the_counters_as_they_were() -> None:
    before = Counters(once=frozenset({"1:1"}))
    for question in (Read("/etc/passwd"), Write("/w/out/a", size_bytes=5000), Connect("evil.test", 1, now_seconds=0.0)):
        assert decide(POLICY, question, before).counters is before


def test_counting_rule_is_named_when_nobody_counts() -> None:
    assert [rule.text for rule in decide(POLICY, Read("/w/k")).counting] == ["read-once: ./k"]
    assert [rule.text for rule in decide(POLICY, Write("/w/out/a")).counting] == ["write: ./out max=1KB"]
    assert [rule.text for rule in decide(POLICY, Connect("a.test", 1)).counting] == ["net: *.test @2/min"]


def test_unknown_size_is_allowed_and_not_counted() -> None:
    decision = decide(POLICY, Write("/w/out/a"), Counters())
    assert decision.allowed
    assert decision.counters == Counters()


def test_same_rule_in_request_and_ceiling_counts_once_for_each() -> None:
    policy = parse("net: a.test @2/min", root="/")
    both = intersect(policy, policy)
    counters: Counters | None = Counters()
    verdicts = []
    for _ in range(3):
        decision = decide(both, Connect("a.test", 1, now_seconds=0.0), counters)
        verdicts.append(decision.allowed)
        counters = decision.counters
    assert verdicts == [True, True, False]


@pytest.mark.parametrize(
    ("question", "layer"),
    [
        (Read("/w/data/a"), "kernel"),
        (Read("/w/a.py"), "interpreter"),
        (Write("/w/out/a"), "interpreter"),
        (Resolve("a.test"), "gateway"),
        (Unix("/run/x"), "gateway"),
        (Exec(("git", "status"), "/usr/bin/git"), "kernel"),
        (Env("A_1"), "supervisor"),
    ],
)
def test_verdict_hints_at_the_layer_that_can_hold_it(question: Any, layer: str) -> None:
    decision = decide(POLICY, question)
    assert decision.allowed
    assert decision.layer_hint == layer


def test_reason_names_the_rule_and_its_line() -> None:
    assert decide(POLICY, Read("/w/data/x")).reason == "`deny: read ./data/x` (<policy>:8) denies it"
