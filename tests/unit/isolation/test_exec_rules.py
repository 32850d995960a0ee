# SPDX-License-Identifier: MIT
"""Which programs a box may start, by rule."""

from __future__ import annotations

import pytest

from agentbox.isolation.launcher.exec_rules import ExecRules

GIT = {"exe": "/usr/bin/git", "name": "git", "args": ["status"], "libexec": ["/usr/lib/git-core"], "rule": "git status"}
ECHO = {"exe": "/usr/bin/echo", "name": "echo", "rule": "echo"}
PYTHON = {"exe": "/usr/bin/python3.11", "name": "python3", "rule": "python3"}
TOOL = {"exe": "/p/tool.sh", "name": "./tool.sh", "args": ["go"], "rule": "tool"}
NO_SHUTDOWN = {"exe": "/usr/bin/echo", "name": "echo", "args": ["bad"], "deny": True, "rule": "deny"}


@pytest.mark.parametrize(
    ("exe", "argv", "fine"),
    [
        ("/usr/bin/echo", [b"echo", b"x"], True),
        ("/usr/bin/echo", [b"/bin/echo"], True),
        ("/usr/bin/echo", [b"sh"], False),
        ("/p/echo", [b"echo"], False),
        ("/usr/bin/echo", [], False),
        ("/usr/bin/echo", [b"echo", b"bad", b"x"], False),
        ("/usr/bin/git", [b"git", b"status", b"-s"], True),
        ("/usr/bin/git", [b"git"], False),
        ("/usr/bin/git", [b"git", b"-c", b"status"], False),
        ("/usr/bin/python3.11", [b"python3"], True),
        ("/usr/bin/python3.11", [b"python3.11"], True),
        ("/usr/bin/python3.11", [b"perl"], False),
    ],
)
def test_a_program_is_judged_by_its_file_and_its_words(exe: str, argv: list[bytes], fine: bool) -> None:
    rules = ExecRules([GIT, ECHO, PYTHON, NO_SHUTDOWN])
    assert (rules.decide(exe, argv) is not None) is fine


def test_a_script_is_judged_and_not_its_interpreter() -> None:
    rules = ExecRules([TOOL])
    assert rules.decide("/bin/sh", [b"/bin/sh", b"./tool.sh", b"go"], script="/p/tool.sh") is not None
    assert rules.decide("/bin/sh", [b"/bin/sh", b"./tool.sh", b"stop"], script="/p/tool.sh") is None
    assert rules.decide("/bin/sh", [b"/bin/sh", b"./other.sh", b"go"], script="/p/other.sh") is None


def test_a_script_that_is_executed_by_a_link_goes_by_the_link_s_name_too() -> None:
    rules = ExecRules(
        [{"exe": "/usr/lib/npm/npm-cli.js", "name": "npm", "args": ["install"], "rule": "exec: npm install"}]
    )
    argv = [b"/usr/bin/env", b"node", b"/usr/bin/npm", b"install", b"x"]
    known = {"script": "/usr/lib/npm/npm-cli.js", "named": b"/usr/bin/npm"}
    assert rules.decide("/usr/bin/env", argv, **known)
    assert not rules.decide("/usr/bin/env", [*argv[:3], b"publish"], **known)
    assert not rules.decide("/usr/bin/env", argv, script="/usr/lib/npm/other.js", named=b"/usr/bin/npm")
    assert not rules.decide("/usr/bin/env", argv, script=known["script"], named=b"/tmp/other")


def test_parts_of_a_program_come_with_it_and_with_nothing_else() -> None:
    rules = ExecRules([GIT])
    part = ("/usr/lib/git-core/git-remote-https", [b"git-remote-https"])
    assert rules.decide(*part, parent="/usr/bin/git") is not None
    assert rules.decide(*part, parent="/usr/lib/git-core/git-x") is not None
    assert rules.decide(*part, parent="/usr/bin/python3.11") is None
    assert rules.may_start(part[0], "/usr/bin/git")
    assert not rules.may_start(part[0], "/bin/sh")


def test_what_is_only_denied_is_not_worth_a_look() -> None:
    assert not ExecRules([NO_SHUTDOWN]).may_start("/usr/bin/echo", "")


def test_a_script_may_be_named_by_a_link() -> None:
    by_link = {"exe": "/p/real.sh", "name": "./tool", "args": ["go"], "rule": "tool"}
    argv = [b"/bin/sh", b"./tool", b"go"]
    assert ExecRules([by_link]).decide("/bin/sh", argv, script="/p/real.sh", named=b"./tool") is not None
    assert ExecRules([by_link]).decide("/bin/sh", argv[:2], script="/p/real.sh", named=b"./tool") is None
    assert ExecRules([by_link]).decide("/bin/sh", argv, script="/p/other.sh", named=b"./tool") is None
    other = [b"/bin/sh", b"./other", b"go"]
    assert ExecRules([by_link]).decide("/bin/sh", other, script="/p/other.sh", named=b"./other") is None
