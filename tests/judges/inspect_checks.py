# SPDX-License-Identifier: MIT
"""Inspect AI's own checks of a sandbox provider, on the provider `agentbox`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from agentbox.integrations.inspect import AgentboxEnvironment

BACKEND = os.environ.get("JUDGED", "jail")
# Boxes that have one user cannot make another.
ONE_USER = {"test_exec_as_user"} if BACKEND == "jail" else set()


@pytest.fixture
async def sandbox_env(request: pytest.FixtureRequest) -> AsyncIterator[SandboxEnvironment]:
    if request.node.originalname in ONE_USER:
        request.node.add_marker(pytest.mark.xfail(reason="the box has one user"))
    made = await AgentboxEnvironment.sample_init("checks", BACKEND, {})
    yield made["default"]
    await AgentboxEnvironment.sample_cleanup("checks", None, made, False)
