# SPDX-License-Identifier: MIT
"""`agentbox policy` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.commands import agentbox, assert_is_told_what_to_do

POLICY = "read: ./data\nwrite: ./out\nnet: api.github.com:443\nexec: sh -c true\nenv: HOME\ndeny: read ./data/private\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("data", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "agentbox.policy").write_text(POLICY)
    return tmp_path


def test_policy_that_is_right_is_counted(project: Path) -> None:
    (project / "agentbox.policy").write_text("read: ./data\nwrite: ./out\n")
    done = agentbox("policy", "check", "agentbox.policy", cwd=project)
    assert (done.exit_code, done.stdout) == (0, "agentbox.policy: 2 rules, 0 warnings\n")


def test_error_is_shown_with_its_line_and_a_caret(project: Path) -> None:
    (project / "agentbox.policy").write_text("read: ./data\nwrte: ./out\n")
    done = agentbox("policy", "check", "agentbox.policy", cwd=project)
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "agentbox.policy:2:1: error: unknown key 'wrte'",
        "    wrte: ./out",
        "    ^",
        "hint: did you mean `write:`?",
    ]


def test_error_as_json_has_the_same_place(project: Path) -> None:
    (project / "agentbox.policy").write_text("read: ./data\nnet: http://x\n")
    done = agentbox("policy", "check", "agentbox.policy", "--json", cwd=project)
    answer = json.loads(done.stdout)
    assert done.exit_code == 1
    assert (answer["ok"], answer["error"]["line"], answer["error"]["column"]) == (False, 2, 6)
    assert answer["error"]["problem"] == "bad_host"


def test_dangerous_rule_is_a_warning_and_an_error_on_request(project: Path) -> None:
    (project / "agentbox.policy").write_text("read: /\n")
    done = agentbox("policy", "check", "agentbox.policy", cwd=project)
    assert done.exit_code == 0
    assert done.stdout.startswith("agentbox.policy:1:7: warning: dangerous: `read: /`: ")
    assert agentbox("policy", "check", "agentbox.policy", "--strict", cwd=project).exit_code == 1
    warnings = json.loads(agentbox("policy", "check", "agentbox.policy", "--json", cwd=project).stdout)["warnings"]
    assert [(w["kind"], w["line"]) for w in warnings] == [("dangerous", 1)]


@pytest.mark.parametrize(
    ("question", "exit_code", "first", "rule"),
    [
        (("read", "data/x"), 0, "allowed: read", "`read: ./data` (agentbox.policy:1) allows it"),
        (("read", "data/../data/x"), 0, "allowed: read", "`read: ./data` (agentbox.policy:1) allows it"),
        (("read", "data/private/x"), 1, "denied: read", "`deny: read ./data/private` (agentbox.policy:6) denies it"),
        (("write", "data/x"), 1, "denied: write", "no `write:` rule covers it"),
        (("net", "api.github.com:443"), 0, "allowed: net", "(agentbox.policy:3) allows it"),
        (("net", "api.github.com:80"), 1, "denied: net", "no `net:` rule names it"),
        (("net", "unix:/run/docker.sock"), 1, "denied: net", "no `net: unix:` rule names it"),
        (("exec", "sh", "-c", "true"), 0, "allowed: exec", "(agentbox.policy:4) allows it"),
        (("exec", "sh", "-c", "id"), 1, "denied: exec", "no `exec:` rule allows this program"),
        (("env", "HOME"), 0, "allowed: env", "(agentbox.policy:5) allows it"),
    ],
)
def test_question_is_answered_with_the_deciding_rule(
    project: Path, question: tuple[str, ...], exit_code: int, first: str, rule: str
) -> None:
    done = agentbox("policy", "explain", "agentbox.policy", "--", *question, cwd=project)
    assert done.exit_code == exit_code, done
    assert done.stdout.startswith(first)
    assert rule in done.stdout.splitlines()[1]


def test_answer_as_json_names_rule_and_line(project: Path) -> None:
    done = agentbox("policy", "explain", "--json", "agentbox.policy", "--", "read", "data/x", cwd=project)
    answer = json.loads(done.stdout)
    assert answer["allowed"] is True
    assert answer["rule"] == {"text": "read: ./data", "path": "agentbox.policy", "line": 1, "column": 7}
    assert answer["asked"] == str(project.resolve() / "data" / "x")


def test_what_cannot_be_asked_is_said(project: Path) -> None:
    done = agentbox("policy", "explain", "agentbox.policy", "--", "frob", "x", cwd=project)
    assert_is_told_what_to_do(done, 2, "'frob'", "read PATH")


def test_missing_policy_is_said(project: Path) -> None:
    for words in (("check", "nowhere"), ("explain", "nowhere", "--", "read", "x")):
        assert_is_told_what_to_do(agentbox("policy", *words, cwd=project), 1, "nowhere")


def test_wrong_policy_answers_nothing(project: Path) -> None:
    (project / "agentbox.policy").write_text("raed: ./data\n")
    done = agentbox("policy", "explain", "agentbox.policy", "--", "read", "data/x", cwd=project)
    assert_is_told_what_to_do(done, 1, "agentbox.policy:1:1", "unknown key")
