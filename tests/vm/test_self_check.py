# SPDX-License-Identifier: MIT
"""The self-check of the jail on a kernel with control groups of version 2 alone, in a virtual machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.test_self_check import JAIL_CHECKS
from tests.vm.run import Result

SITUATIONS = ("as_root", "as_user_with_a_delegated_group")

Reports = dict[str, Any]


@pytest.fixture(scope="module")
def reports(results: dict[str, Result]) -> Reports:
    result = results["self_check"]
    assert result.exit_code == 0, result.stderr + result.console
    return dict(json.loads(result.stdout))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_jail_passes_its_whole_self_check(situation: str, reports: Reports) -> None:
    assert "broken" not in reports[situation], reports[situation]
    report = reports[situation]
    assert report["usable"], report
    assert [check for check in report["checks"] if not check["passed"]] == []
    assert {check["name"] for check in report["checks"]} >= JAIL_CHECKS


@pytest.mark.parametrize("situation", SITUATIONS)
def test_groups_of_version_2_hold_memory_and_processor_time(situation: str, reports: Reports) -> None:
    assert "broken" not in reports[situation], reports[situation]
    held = reports[situation]["enforcement"]
    assert {held[name] for name in ("filesystem", "network", "memory", "pids", "cpu", "disk")} == {"kernel"}
