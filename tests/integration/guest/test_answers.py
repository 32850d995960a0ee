# SPDX-License-Identifier: MIT
"""What the guard answers from its tables is what the policy says: by the vectors of `spec/policy`."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from agentbox.guest.guard.answers import LINE, Answers
from agentbox.guest.tables import tables
from agentbox.policy import questions
from agentbox.policy.document import intersect
from tests.architecture.source import REPOSITORY
from tests.vectors.test_policy_vectors import cases, world_of


def ask(answers: Answers, question: questions.Question) -> Any:
    if isinstance(question, questions.Read):
        return answers.read(question.path, question.identity)
    if isinstance(question, questions.Write):
        return answers.write(question.path, question.size_bytes, question.identity, question.whole)
    if isinstance(question, questions.Resolve):
        return answers.resolve(question.host)
    if isinstance(question, questions.Connect):
        return answers.connect(question.host, question.port, question.address, question.now_seconds)
    if isinstance(question, questions.Unix):
        return answers.unix(question.path, question.now_seconds)
    if isinstance(question, questions.Exec):
        return answers.start(question.argv, question.program, question.parent)
    raise AssertionError(question)


@pytest.mark.parametrize("case", cases("decide"))
def test_guard_answers_as_the_vector_says(case: Any) -> None:
    world = world_of(case)
    policy = world.parse(case["policy"])
    asked = intersect(policy, world.parse(case["ceiling"])) if "ceiling" in case else policy
    # Through JSON, as a guard gets them.
    answers = Answers(json.loads(json.dumps(tables(asked))), counting="once" in case)
    for identity in case.get("once", ()):
        answers.expect_once(identity)
    wrong = []
    for asking, allowed, line in case["questions"]:
        question = world.question(asking)
        if isinstance(question, questions.Env):
            continue
        verdict = ask(answers, question)
        found = (verdict[0], verdict[1][LINE] if verdict[1] else None)
        if found != (allowed, line):
            wrong.append((asking, "expected", (allowed, line), "found", found, verdict[2]))
    assert not wrong, "\n".join(map(str, wrong))


def as_call(question: questions.Question) -> list[Any]:
    if isinstance(question, questions.Read):
        return ["read", question.path, question.identity]
    if isinstance(question, questions.Write):
        return ["write", question.path, question.size_bytes, question.identity, question.whole]
    if isinstance(question, questions.Resolve):
        return ["resolve", question.host]
    if isinstance(question, questions.Connect):
        return ["connect", question.host, question.port, question.address, question.now_seconds]
    if isinstance(question, questions.Unix):
        return ["unix", question.path, question.now_seconds]
    if isinstance(question, questions.Exec):
        return ["start", list(question.argv), question.program, question.parent]
    raise AssertionError(question)


def test_node_guard_answers_as_the_vectors_say(node: str) -> None:
    sent, expected, names = [], [], []
    for parameter in cases("decide"):
        case = parameter.values[0]
        world = world_of(case)
        policy = world.parse(case["policy"])
        asked = intersect(policy, world.parse(case["ceiling"])) if "ceiling" in case else policy
        rows = [(world.question(a), [allowed, line]) for a, allowed, line in case["questions"]]
        rows = [row for row in rows if not isinstance(row[0], questions.Env)]
        sent.append(
            json.dumps(
                {
                    "tables": tables(asked),
                    "counting": "once" in case,
                    "once": case.get("once", []),
                    "questions": [as_call(question) for question, _ in rows],
                }
            )
        )
        expected.append([wanted for _, wanted in rows])
        names.append(case["name"])
    script = REPOSITORY / "tests" / "vectors" / "answers.mjs"
    done = subprocess.run([node, str(script)], input="\n".join(sent), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(expected) > 40
    wrong = [(name, f, e) for name, f, e in zip(names, found, expected, strict=True) if f != e]
    assert not wrong, "\n".join(map(str, wrong))
