# SPDX-License-Identifier: MIT
"""Policies that were read before are read again when they could mean something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentbox.engine.readings import MAX_CHARACTERS, Readings
from agentbox.engine.run_policy import RunPolicy, decide_policy
from agentbox.errors import PolicySyntaxError
from agentbox.isolation.interpreters import Found
from agentbox.models import Limits

LIMITS = Limits(timeout_seconds=20, memory_mb=128, cpus=1.0, pids=32, disk_mb=8, max_output_bytes=1 << 16)


@pytest.fixture
def found(tmp_path: Path) -> Found:
    """An interpreter in a directory whose programs a test makes."""
    return Found(str(tmp_path / "python3"), "3", (str(tmp_path),))


def read(readings: Readings, text: str, found: Found, owner: str = "one", limits: Limits = LIMITS) -> RunPolicy:
    policy = decide_policy(text, None, "python", found, limits, {}, readings, owner)
    assert policy is not None
    return policy


def test_the_same_text_is_read_once(found: Found) -> None:
    readings = Readings()
    assert read(readings, "read: .", found).reading is read(readings, "read: .", found).reading


def test_another_key_or_other_limits_have_a_reading_of_their_own(found: Found) -> None:
    readings = Readings()
    one = read(readings, "read: .", found).reading
    assert read(readings, "read: .", found, owner="two").reading is not one
    narrow = Limits(timeout_seconds=1, memory_mb=64, cpus=1.0, pids=8, disk_mb=8, max_output_bytes=1 << 16)
    assert read(readings, "read: .", found, limits=narrow).confinement.limits.memory_mb == 64


def programs(policy: RunPolicy) -> list[str | None]:
    return [rule.program for rules in policy.confinement.programs for rule in rules]


def make(tool: Path) -> None:
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)


def test_a_program_that_came_meanwhile_is_found(found: Found, tmp_path: Path) -> None:
    readings, tool = Readings(), tmp_path / "agentbox-test-tool"
    assert programs(read(readings, f"exec: {tool.name}", found)) != [str(tool)]
    make(tool)
    after = read(readings, f"exec: {tool.name}", found)
    assert programs(after) == [str(tool)]
    assert after.reading is read(readings, f"exec: {tool.name}", found).reading


def test_a_program_that_went_meanwhile_is_not_found_any_more(found: Found, tmp_path: Path) -> None:
    readings, tool = Readings(), tmp_path / "agentbox-test-tool"
    make(tool)
    assert programs(read(readings, f"exec: {tool.name}", found)) == [str(tool)]
    tool.unlink()
    assert programs(read(readings, f"exec: {tool.name}", found)) != [str(tool)]


def test_a_wrong_text_is_refused_every_time(found: Found) -> None:
    readings = Readings()
    for _ in range(2):
        with pytest.raises(PolicySyntaxError):
            read(readings, "reed: .", found)


def test_long_texts_are_not_kept(found: Found) -> None:
    readings = Readings()
    text = "read: .\n" + "# words\n" * MAX_CHARACTERS
    assert read(readings, text, found).reading is not read(readings, text, found).reading


def test_no_more_than_so_many_are_kept(found: Found) -> None:
    readings = Readings()
    first = read(readings, "read: .", found).reading
    for number in range(200):
        read(readings, f"read: ./{number}", found)
    assert read(readings, "read: .", found).reading is not first
