# SPDX-License-Identifier: MIT
"""LangChain's own checks of a sandbox backend for deepagents, on AgentboxBackend."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from agentbox import Sandbox
from agentbox.integrations.deepagents import AgentboxBackend


class TestAgentbox(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[AgentboxBackend]:
        with Sandbox(backend=os.environ.get("JUDGED", "jail")) as sandbox:
            yield AgentboxBackend(sandbox)
