# SPDX-License-Identifier: MIT
"""The policy language passes the vectors that every implementation of it passes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentbox.errors import PolicySyntaxError
from agentbox.policy.decision import Counters
from agentbox.policy.document import canonical_text, intersect
from agentbox.policy.evaluation import decide
from tests.architecture.source import REPOSITORY
from tests.vectors.policy_world import World

VECTORS = REPOSITORY / "spec" / "policy" / "vectors"


def cases(name: str) -> list[Any]:
    """Each case of a vector file, with the root and home of the file."""
    document = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))
    assert document["format"] == f"agentbox-policy-{name}/1"
    return [
        pytest.param({"root": document["root"], "home": document["home"], **case}, id=case["name"])
        for case in document["cases"]
    ]


def world_of(case: Any) -> World:
    return World(case, case["root"], case["home"])


@pytest.mark.parametrize("case", cases("parse"))
def test_text_is_read_or_refused_as_the_vector_says(case: Any) -> None:
    text = bytes.fromhex(case["bytes_hex"]) if "bytes_hex" in case else case["text"]
    if "error" in case:
        with pytest.raises(PolicySyntaxError) as caught:
            world_of(case).parse(text)
        error = caught.value
        found = {"path": error.path, "line": error.line, "column": error.column, "problem": error.problem}
        assert found == {"path": "<policy>", **case["error"]}
        assert error.hint
        assert len(error.caret) == error.column
    else:
        assert canonical_text(world_of(case).parse(text)).splitlines() == case["rules"]


@pytest.mark.parametrize("case", cases("hash"))
def test_policy_has_the_hash_of_the_vector(case: Any) -> None:
    assert world_of(case).parse(case["text"]).policy_sha256 == case["policy_sha256"]


@pytest.mark.parametrize("case", cases("decide"))
def test_questions_are_answered_as_the_vector_says(case: Any) -> None:
    world = world_of(case)
    policy = world.parse(case["policy"])
    asked = intersect(policy, world.parse(case["ceiling"])) if "ceiling" in case else policy
    counters = Counters(once=frozenset(case["once"])) if "once" in case else None
    wrong = []
    for ask, allowed, line in case["questions"]:
        decision = decide(asked, world.question(ask), counters)
        counters = decision.counters
        found = (decision.allowed, decision.rule.place.line if decision.rule else None)
        if found != (allowed, line):
            wrong.append((ask, "expected", (allowed, line), "found", found, decision.reason))
    assert not wrong, "\n".join(map(str, wrong))
