# SPDX-License-Identifier: MIT
"""What of a policy a sandbox is built from, and what is refused because nothing would hold it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentbox.errors import ConfigError, PolicyError, PolicySyntaxError
from agentbox.models import Enforcement, Layer, Limits
from agentbox.sandbox.ceiling import read_ceiling
from agentbox.sandbox.confining import SandboxPolicy, give_back
from agentbox.sandbox.options import read_options

LIMITS = Limits(1000.0, 512, 2.0, 128, 256, 1 << 20)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace with some files."""
    made = tmp_path / "work"
    (made / "src" / "gen").mkdir(parents=True)
    (made / "src" / "a.py").write_text("print(1)\n")
    (made / ".env").write_text("SECRET")
    (made / "out").symlink_to("/etc")
    return made


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("read-once: a", "nothing counts reads"),
        ("write: out max=10kb", "nothing counts bytes"),
        ("write: *.txt", "do not exist yet"),
        ("read: /usr/*.conf", "below /work only"),
        ("deny: exec curl", "can be copied"),
        ("deny: read /usr/share", "only what lies in /work"),
        ("deny: read .", "works in it"),
    ],
)
def test_a_rule_that_nothing_holds_is_refused_with_its_line(text: str, why: str) -> None:
    with pytest.raises(PolicyError, match=why) as caught:
        SandboxPolicy(f"# a policy\n{text}\n")
    assert f"`{text}` (<policy>:2)" in caught.value.message
    assert caught.value.hint


def test_a_text_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(PolicySyntaxError):
        SandboxPolicy("wirte: out\n")


def test_rules_about_programs_are_refused_where_nobody_judges_them_naming_who_does() -> None:
    policy = SandboxPolicy("net: a.test\nexec: git\n")
    policy.check("jail", judges=True, able=("jail",))
    with pytest.raises(PolicyError, match=r"`exec: git` \(<policy>:2\).*backend gvisor") as caught:
        policy.check("gvisor", judges=False, able=("jail",))
    assert "jail" in caught.value.hint


def test_a_limit_is_refused_where_nothing_holds_it() -> None:
    policy = SandboxPolicy("limits: memory_mb=100, disk_mb=10\n")
    held = Enforcement(memory=Layer.KERNEL, disk=Layer.KERNEL)
    policy.check_held(held, "jail")
    with pytest.raises(PolicyError, match="disk"):
        policy.check_held(replace(held, disk=Layer.NONE), "jail")


def test_limits_are_the_smallest_of_policy_and_arguments() -> None:
    options = read_options(memory="1g", policy="limits: memory_mb=2048, pids=64, timeout_seconds=60\n", max_lifetime=90)
    assert (options.limits.memory_mb, options.limits.pids, options.max_lifetime) == (1024, 64, 60)


def test_a_kind_of_rule_that_grants_nothing_leaves_what_a_sandbox_has(workspace: Path) -> None:
    policy = SandboxPolicy("net: a.test:443\n")
    confined = policy.confine(str(workspace), LIMITS)
    assert (confined.view, confined.programs, confined.warnings) == (None, None, ())
    assert policy.has_way_out
    assert policy.denial_of_variable("TOKEN") is None


def test_grants_replace_the_whole_workspace_and_denials_are_taken_out(workspace: Path) -> None:
    confined = SandboxPolicy("read: .\nwrite: src\ndeny: write src/gen\ndeny: read .env\n").confine(
        str(workspace), LIMITS
    )
    assert confined.view is not None
    assert dict(confined.view.shown) == {"/work": False, "/work/src": True}
    assert confined.view.read_only == ("/work/src/gen",)
    assert confined.view.hidden == ("/work/.env",)


def test_denials_alone_are_taken_out_of_the_workspace(workspace: Path) -> None:
    confined = SandboxPolicy("deny: read .env\n").confine(str(workspace), LIMITS)
    assert confined.view is not None
    assert (dict(confined.view.shown), confined.view.hidden) == ({"/work": True}, ("/work/.env",))


def test_the_home_is_another_name_of_the_workspace(workspace: Path) -> None:
    confined = SandboxPolicy("read: ~/src\nexec: ~/src/run\n").confine(str(workspace), LIMITS)
    assert confined.view is not None
    assert dict(confined.view.shown) == {"/work/src": False}
    assert confined.programs is not None
    assert [rule.program for rule in confined.programs[0]] == ["/work/src/run", "/root/src/run"]


def test_what_rules_name_is_made_and_taken_back_when_it_stayed_empty(workspace: Path) -> None:
    confined = SandboxPolicy("write: made/deep, kept\ndeny: read made/.secret\n").confine(str(workspace), LIMITS)
    assert (workspace / "made" / "deep").is_dir()
    assert (workspace / "made" / ".secret").is_file()
    (workspace / "kept" / "file").write_text("x")
    give_back(str(workspace), confined.made)
    assert not (workspace / "made" / "deep").exists()
    assert not (workspace / "made" / ".secret").exists()
    assert (workspace / "kept" / "file").read_text() == "x"


def test_nothing_is_made_behind_a_link_and_a_denial_there_is_refused(workspace: Path) -> None:
    confined = SandboxPolicy("write: src, out/x\n").confine(str(workspace), LIMITS)
    assert confined.view is not None
    assert dict(confined.view.shown) == {"/work/src": True}
    with pytest.raises(PolicyError, match="nothing can be made there"):
        SandboxPolicy("write: .\ndeny: read src/a.py/x\n").confine(str(workspace), LIMITS)


def test_what_holds_in_part_is_said(workspace: Path) -> None:
    confined = SandboxPolicy("deny: read **/*.key\nprotect: on\nwrite: /etc, .\n").confine(str(workspace), LIMITS)
    assert [text.split("`")[1] for text in confined.warnings] == ["deny: read **/*.key", "protect: on", "write: /etc"]


def test_variables_are_those_that_every_policy_passes_on() -> None:
    policy = SandboxPolicy("env: CI, T*\ndeny: env TOKEN\n", "env: CI, TERM, TOKEN\n")
    assert [name for name in ("CI", "TERM", "TOKEN", "TZ") if policy.denial_of_variable(name) is None] == ["CI", "TERM"]


def test_of_two_policies_each_must_grant(workspace: Path) -> None:
    confined = SandboxPolicy("write: .\n", "read: .\nwrite: src\nexec: git\n").confine(str(workspace), LIMITS)
    assert confined.view is not None
    assert dict(confined.view.shown) == {"/work": False, "/work/src": True}
    assert confined.programs is not None
    assert len(confined.programs) == 1


def test_an_operators_policy_is_read_with_what_it_includes_and_narrows_every_sandbox(tmp_path: Path) -> None:
    (tmp_path / "more.policy").write_text("env: CI\n")
    (tmp_path / "top.policy").write_text("include: more.policy\nread: .\nlimits: pids=32\n")
    ceiling = read_ceiling(tmp_path / "top.policy")
    options = read_options(policy="write: .\nnet: a.test\n", ceiling=ceiling)
    assert options.limits.pids == 32
    policy = SandboxPolicy(*options.policies)
    assert not policy.has_way_out, "the operator grants none"
    assert policy.denial_of_variable("TOKEN") is not None
    confined = policy.confine(str(tmp_path), options.limits)
    assert confined.view is not None
    assert dict(confined.view.shown) == {"/work": False}


def test_an_operators_policy_with_a_fault_is_a_setting_with_a_fault(tmp_path: Path) -> None:
    assert read_ceiling(None) is None
    with pytest.raises(ConfigError, match="AGENTBOX_POLICY_CEILING"):
        read_ceiling(tmp_path / "none")
    (tmp_path / "bad").write_text("wirte: out\n")
    with pytest.raises(ConfigError, match=r"AGENTBOX_POLICY_CEILING.*wirte"):
        read_ceiling(tmp_path / "bad")
