# SPDX-License-Identifier: MIT
"""Boxes of the warm pool hold what a box of the launcher holds, in each way that the pool has of giving one."""

from __future__ import annotations

import os

import pytest

from agentbox.isolation.facilities import Facilities
from agentbox.isolation.interpreters import INTERPRETERS
from agentbox.isolation.pool.pool import WarmPool
from agentbox.isolation.selfcheck import examine
from agentbox.models import Confinement
from tests.conformance.pooled_box import LIMITS, WAYS, attached_backend, no_network, pooled_backend
from tests.conformance.test_attached_box import ATTACHED_CHECKS
from tests.conformance.test_self_check import JAIL_CHECKS
from tests.conftest import not_here


@pytest.mark.parametrize("way", WAYS)
async def test_a_box_of_the_pool_passes_the_whole_self_check(way: str) -> None:
    if os.geteuid() != 0:
        not_here("a warm pool needs control groups, which root has")
    python = INTERPRETERS["python"].find("/usr/bin/python3")
    async with pooled_backend(python, way) as backend:
        report = await examine(backend, python, None)  # type: ignore[arg-type]
    assert [check for check in report.checks if not check.passed] == []
    assert {check.name for check in report.checks} >= JAIL_CHECKS | {"cpu_is_bounded"}
    assert report.usable


async def test_a_box_that_waits_with_a_way_out_passes_the_whole_self_check() -> None:
    if os.geteuid() != 0:
        not_here("a warm pool needs control groups, which root has")
    python = INTERPRETERS["python"].find("/usr/bin/python3")
    async with attached_backend(python) as backend:
        report = await examine(backend, python, None, networks=no_network, thorough=False)  # type: ignore[arg-type]
    assert [check for check in report.checks if not check.passed] == []
    assert {check.name for check in report.checks} >= JAIL_CHECKS | ATTACHED_CHECKS


async def test_a_pool_says_that_a_box_would_hide_an_interpreter_below_its_own_directories() -> None:
    facilities = await Facilities.open()
    try:
        hidden = Confinement(LIMITS, ("/tmp/venv",))
        assert "/tmp/venv" in WarmPool.missing(facilities, hidden)
        assert "/tmpx" not in WarmPool.missing(facilities, Confinement(LIMITS, ("/tmpx",)))
    finally:
        await facilities.close()
