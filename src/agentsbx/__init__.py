# SPDX-License-Identifier: MIT
"""The durable sandbox under its older name: what `agentbox` has, for programs that import `agentsbx`."""

from __future__ import annotations

from agentbox.errors import SandboxError
from agentbox.sandbox.asynchronous import DEFAULT_IMAGE
from agentbox.sandbox.results import ShellResult
from agentbox.sandbox.synchronous import Command, Sandbox
from agentbox.sandbox.texts import MAX_OUTPUT_BYTES
from agentbox.sandbox.tools import TOOLS

__all__ = ["DEFAULT_IMAGE", "MAX_OUTPUT_BYTES", "TOOLS", "Command", "Sandbox", "SandboxError", "ShellResult"]
