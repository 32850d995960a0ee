# SPDX-License-Identifier: MIT
"""What `agentbox run` decides before there is a box."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentbox.config import Settings, usual_state_directory
from agentbox.engine.agent_run import _egress_rules, _links, _private
from agentbox.engine.policy_world import HostFiles, read_policy
from agentbox.models import Confinement, FileGrant, Layer, Limits
from agentbox.policy.compilation import compile_policy
from agentbox.policy.document import Conjunction, Policy

LIMITS = Limits(timeout_seconds=20, memory_mb=128, cpus=1.0, pids=24, disk_mb=8, max_output_bytes=1 << 16)


def compiled(policy: Policy) -> Confinement:
    return compile_policy(policy, LIMITS, HostFiles())


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A project with a directory, a file, and a link to each."""
    (tmp_path / "real").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "other").symlink_to("file")
    return tmp_path


def links(policy: Policy | Conjunction, confinement: Confinement) -> dict[str, bool]:
    return {grant.path: grant.writable for grant in _links(policy, confinement)}


def test_a_link_that_a_rule_names_is_there_beside_what_it_points_to(linked: Path) -> None:
    policy = read_policy("write: ./link\nread: ./other\nread: ./file\n", root=str(linked))
    assert links(policy, compiled(policy)) == {f"{linked}/link": True, f"{linked}/other": False}


def test_a_rule_without_a_link_needs_no_further_grant(linked: Path) -> None:
    policy = read_policy("read: ./real\nwrite: ./file\n", root=str(linked))
    assert links(policy, compiled(policy)) == {}


def test_a_link_that_is_denied_or_not_granted_by_the_kernel_is_not_shown(linked: Path) -> None:
    policy = read_policy("read: ./real\ndeny: read ./link\n", root=str(linked))
    assert links(policy, compiled(policy)) == {}
    policy = read_policy("read: ./link\n", root=str(linked))
    grant = FileGrant(f"{linked}/real", False, True, Layer.INTERPRETER, "read: ./link")
    assert links(policy, Confinement(LIMITS, files=(grant,))) == {}
    assert links(policy, Confinement(LIMITS)) == {}


def test_a_policy_that_opens_no_network_needs_no_gateway(tmp_path: Path) -> None:
    assert _egress_rules(read_policy("read: .\ndeny: net example.com\n", root=str(tmp_path))) is None
    rules = _egress_rules(read_policy("net: example.com\ndeny: net evil.example.com\n", root=str(tmp_path)))
    assert rules is not None
    assert rules.connect("example.com", 443).allowed
    assert not rules.connect("evil.example.com", 443).allowed


def test_keys_and_other_runs_state_are_private_but_not_the_project_within_them(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "project").mkdir(parents=True)
    settings = Settings(state_dir=state)
    outside = _private(settings, str(tmp_path / "elsewhere"))
    checkpoints = f"{tmp_path}/elsewhere/.agentbox/checkpoints"
    assert set(outside) == {settings.trace_key_dir(), settings.state_directory(), usual_state_directory(), checkpoints}
    inside = _private(settings, str(state / "project"))
    assert settings.trace_key_dir() in inside
    assert settings.state_directory() not in inside
