# SPDX-License-Identifier: MIT
"""A call that failed is a denial where the policy says the same, and nothing otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentbox.engine.refused_files import record_of
from agentbox.policy.document import Policy
from agentbox.policy.parser import parse


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    (tmp_path / "hidden").touch()
    return parse("allow: read ./src\nallow: write ./out\ndeny: write ./out/fixed\n", root=str(tmp_path))


def test_file_that_is_read_only_where_the_policy_grants_no_write_was_refused(policy: Policy, tmp_path: Path) -> None:
    path = str(tmp_path / "out" / "fixed")
    assert record_of({"op": "open_write", "path": path, "error": "EROFS"}, policy) == (
        "write",
        {
            "target": path,
            "enforced": True,
            "error": "EROFS",
            "reason": "`deny: write ./out/fixed` (<policy>:3) denies it",
            "rule": "deny: write ./out/fixed",
        },
    )


def test_file_of_the_host_that_the_box_does_not_show_was_refused(policy: Policy, tmp_path: Path) -> None:
    found = record_of({"op": "open_read", "path": str(tmp_path / "hidden"), "error": "ENOENT"}, policy)
    assert found is not None
    assert (found[0], found[1]["reason"]) == ("read", "the box does not show it")


@pytest.mark.parametrize(
    ("op", "path", "error"),
    [
        ("open_read", "nowhere", "ENOENT"),
        ("open_read", "src/private", "EACCES"),
        ("open_read", "hidden", "EISDIR"),
        ("open_read", "/proc/1/environ", "EACCES"),
        ("open_read", "no-end\0", "ENOENT"),
        ("connect", "hidden", "EACCES"),
    ],
)
def test_what_is_nobodys_or_fails_for_another_reason_was_not_refused(
    policy: Policy, tmp_path: Path, op: str, path: str, error: str
) -> None:
    assert record_of({"op": op, "path": str(tmp_path / path), "error": error}, policy) is None


def test_call_that_worked_was_not_refused(policy: Policy, tmp_path: Path) -> None:
    assert record_of({"op": "open_read", "path": str(tmp_path / "hidden")}, policy) is None
