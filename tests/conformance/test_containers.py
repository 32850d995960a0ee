# SPDX-License-Identifier: MIT
"""The self-check that ships with the product, for containers on runc and on gVisor's runsc."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator

import pytest

from agentbox.isolation import registry
from agentbox.isolation.facilities import DockerOptions, Facilities
from agentbox.isolation.selfcheck import examine
from agentbox.models import Layer
from tests.conformance.test_self_check import JAIL_CHECKS
from tests.docker_engine import TestEngine


@contextlib.asynccontextmanager
async def directory() -> AsyncIterator[str]:
    with tempfile.TemporaryDirectory() as path:
        yield path


@pytest.mark.parametrize("runtime", ["runc", "runsc"])
async def test_container_passes_every_check_and_holds_everything_but_starts_of_programs(
    runtime: str, docker_engine: TestEngine
) -> None:
    facilities = await Facilities.open()
    facilities.docker = DockerOptions(host=docker_engine.host, runtime=runtime)
    backend = registry.make("docker", facilities)
    try:
        report = await examine(backend, None, directory)
    finally:
        await backend.close()
        await facilities.close()
    assert [check for check in report.checks if not check.passed] == []
    assert {check.name for check in report.checks} >= {*JAIL_CHECKS, "cpu_is_bounded"}
    held = report.enforcement
    assert {held.filesystem, held.network, held.memory, held.pids, held.cpu, held.disk} == {Layer.KERNEL}
    assert held.exec is Layer.NONE
