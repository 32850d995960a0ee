# SPDX-License-Identifier: MIT
"""Control groups version 2 on a real kernel: as root, delegated to a user, in a container, and where unavailable."""

from __future__ import annotations

import json

import pytest

from tests.vm.run import Result

SITUATIONS = {
    "as_root": "/sys/fs/cgroup",
    "as_user_with_a_delegated_group": "/sys/fs/cgroup/delegated",
    "as_user_below_a_delegated_group": "/sys/fs/cgroup/manager",
    "as_root_of_a_container": "/sys/fs/cgroup",
    "user_without_delegation": None,
    "others_in_the_group": None,
    "read_only": None,
}
# Figures and places, not claims.
NOTES = ("base", "cost")


@pytest.fixture(scope="module")
def report(results: dict[str, Result]) -> dict[str, dict[str, str]]:
    result = results["cgroups_v2"]
    assert result.exit_code == 0, result.stderr + result.console
    return dict(json.loads(result.stdout))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_version_2_holds_its_claims(situation: str, report: dict[str, dict[str, str]]) -> None:
    answers = report[situation]
    failed = [f"{claim}: {answer}" for claim, answer in answers.items() if claim not in NOTES and answer != "ok"]
    assert not failed, "\n".join(failed)
    assert "ok" in answers.values()
    assert answers.get("base") == SITUATIONS[situation]


def test_a_failing_script_gives_its_exit_code_and_both_outputs(results: dict[str, Result]) -> None:
    result = results["posture"]
    assert result.exit_code == 3, result.stderr + result.console
    assert json.loads(result.stdout) == {"uid": 0, "landlock": True, "seccomp": True, "user_namespaces": True, "v1": []}
    assert result.stderr == "posture: leaving\n"
