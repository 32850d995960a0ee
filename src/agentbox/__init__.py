# SPDX-License-Identifier: MIT
"""agentbox runs code that an AI agent wrote, or a whole agent, in a box."""

from __future__ import annotations

__version__ = "0.9.0"
