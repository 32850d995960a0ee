# SPDX-License-Identifier: MIT
from __future__ import annotations

import json

import pytest

from agentbox.errors import PolicyError
from agentbox.policy.document import Conjunction, Policy, intersect
from agentbox.policy.evaluation import decide
from agentbox.policy.parser import parse
from agentbox.policy.questions import Exec, Read, Write
from agentbox.policy.transport import pack, unpack


def read_on_the_host(text: str) -> Policy:
    return parse(
        text,
        root="/srv/link",
        path="agentbox.policy",
        home="/home/u",
        resolve=lambda path: path.replace("/srv/link", "/data/real"),
        find_program=lambda name: f"/usr/bin/{name}" if name == "git" else None,
        libexec_of=lambda program: ("/usr/lib/git-core",),
        read_include=lambda path: "env: LANG\n",
    )


def test_policy_in_another_process_answers_as_on_the_host() -> None:
    policy = read_on_the_host("read: ./data, ~/x, ./*/y\n\ninclude: base\nexec: git status\nexec: gone\nwrite: .\n")
    there = unpack(json.loads(json.dumps(pack(policy))))
    assert isinstance(there, Policy)
    assert there == policy
    assert there.policy_sha256 == policy.policy_sha256
    assert [rule.place for rule in there.rules] == [rule.place for rule in policy.rules]
    for question in (
        Read("/data/real/data/a"),
        Read("/home/u/x"),
        Write("/data/real/agentbox.policy"),
        Write("/data/real/.agentbox/x"),
        Write("/data/real/a"),
        Exec(("git", "status"), "/usr/bin/git"),
        Exec(("gone",), "/usr/bin/gone"),
        Exec(("git-x",), "/usr/lib/git-core/git-x", "/usr/bin/git"),
    ):
        assert decide(there, question) == decide(policy, question)


def test_several_policies_travel_together() -> None:
    both = intersect(read_on_the_host("read: ."), read_on_the_host("read: ./data"))
    there = unpack(pack(both))
    assert isinstance(there, Conjunction)
    assert there.policy_sha256 == both.policy_sha256


@pytest.mark.parametrize(
    "document",
    [{}, {"format": "other"}, {"format": "agentbox-policy/1"}, {"format": "agentbox-policy/1", "policies": [{}]}],
)
def test_what_is_no_packed_policy_is_an_error(document: dict[str, object]) -> None:
    with pytest.raises(PolicyError):
        unpack(document)
