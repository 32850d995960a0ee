# SPDX-License-Identifier: MIT
"""Inspect AI's own checks of a sandbox provider, on the provider `agentbox`: all in one sandbox, as Inspect does."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from agentbox.integrations.inspect import AgentboxEnvironment

BACKEND = os.environ.get("JUDGED", "jail")
# A box of the jail has one user, who cannot make another.
ONE_USER = {"test_exec_as_user"} if BACKEND == "jail" else set()
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made() -> AsyncIterator[SandboxEnvironment]:
    environments = await AgentboxEnvironment.sample_init("checks", BACKEND, {})
    yield environments["default"]
    await AgentboxEnvironment.sample_cleanup("checks", None, environments, False)


@pytest.fixture
def sandbox_env(request: pytest.FixtureRequest, made: SandboxEnvironment) -> SandboxEnvironment:
    if request.node.originalname in ONE_USER:
        request.node.add_marker(pytest.mark.xfail(reason="the box has one user"))
    return made
