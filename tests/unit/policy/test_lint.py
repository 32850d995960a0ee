# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

from agentbox.policy.lint import lint
from agentbox.policy.parser import parse

PROGRAMS = {
    "git": "/usr/bin/git",
    "python3": "/usr/bin/python3.11",
    "sh": "/usr/bin/dash",
    "xargs": "/usr/bin/xargs",
    "own": "/w/out/own",
}


def found(text: str, missing: tuple[str, ...] = ()) -> list[tuple[int, str]]:
    """Line and kind of each finding."""
    policy = parse(text, root="/w", home="/home/u", find_program=PROGRAMS.get)
    findings = lint(policy, lambda path: path not in missing)
    assert all(finding.message and finding.advice for finding in findings)
    return [(finding.rule.place.line, str(finding.kind)) for finding in findings]


@pytest.mark.parametrize(
    "text",
    [
        "read: ./data\nwrite: ./out\nnet: api.github.com:443, *.example.com\nexec: git status\nenv: HOME\n",
        "read: ./data\ndeny: read ./data/x\n",
        "net: localhost:8080\nnet: 10.0.0.1\n",
        "env: HOME\ndeny: env *TOKEN*\n",
        "exec: git\ndeny: exec git push\n",
    ],
)
def test_sensible_policy_has_no_findings(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    "rule",
    [
        "read: /",
        "read: ~",
        "write: ~",
        "write: /etc",
        "read: /home",
        "read: ~/.ssh/id_rsa",
        "write: .",
        "read: /**",
        "net: *",
        "net: *.com",
        "net: cidr/0.0.0.0/0",
        "net: 169.254.169.254",
        "net: unix:*",
        "net: unix:/run/docker.sock",
        "exec: sh",
        "exec: python3",
        "exec: xargs",
        "env: *",
        "env: *TOKEN*",
        "env: AWS_*",
        "env: DB_PASSWORD",
    ],
)
def test_rule_that_gives_everything_away_is_dangerous(rule: str) -> None:
    assert (1, "dangerous") in found(rule)


def test_a_program_that_the_run_can_rewrite_is_dangerous() -> None:
    assert found("write: ./out\nexec: own\n") == [(2, "dangerous")]


def test_writing_the_project_is_not_dangerous_when_it_is_protected() -> None:
    assert found("write: .\nprotect: on\n") == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("read: ./a\nread: ./a/b\n", 2),
        ("write: ./a\nread: ./a/b\n", 2),
        ("exec: git\nexec: git status\n", 2),
        ("read: ./a\nread: ./*/x\nread: ./b/x/y\n", 3),
    ],
)
def test_rule_that_another_covers_is_shadowed(text: str, line: int) -> None:
    assert (line, "shadowed") in found(text)


def test_named_host_is_shadowed_by_the_wildcard_but_not_where_it_says_more() -> None:
    assert (2, "shadowed") in found("net: *\nnet: a.com\n")
    assert found("net: *\nnet: a.com @1/s\nnet: localhost\nnet: 10.0.0.1\n") == [(1, "dangerous")]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("deny: read ./x\n", 1),
        ("read: ./a\ndeny: write ./a\n", 2),
        ("deny: net a.com\n", 1),
        ("deny: exec git\n", 1),
        ("deny: env A\n", 1),
        ("exec: gone\n", 1),
        ("read: ./a/b\ndeny: read ./a\n", 1),
    ],
)
def test_rule_without_effect_is_dead(text: str, line: int) -> None:
    assert (line, "dead") in found(text)


def test_rule_for_a_path_that_is_not_there_is_dead() -> None:
    assert found("read: ./gone\n", missing=("/w/gone",)) == [(1, "dead")]


def test_rule_that_stands_twice_is_double() -> None:
    assert found("read: ./a\nenv: X, X\nread:  ./a\n") == [(2, "duplicate"), (3, "duplicate")]


def test_value_that_looks_like_a_misspelt_key_is_suspicious() -> None:
    assert found("read: ./a\nwrte:./b\n") == [(2, "suspicious")]


def test_lint_of_a_large_policy_ends() -> None:
    text = "".join(f"read: ./d{i}\n" for i in range(500))
    assert found(text) == []
