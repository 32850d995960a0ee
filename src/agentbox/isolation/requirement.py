# SPDX-License-Identifier: MIT
"""What a backend needs of the host."""

from __future__ import annotations

from agentbox.records import dataclass


@dataclass(frozen=True, slots=True)
class Requirement:
    """Something a backend needs. `fix` says how to get it; empty when it is met."""

    name: str
    met: bool
    detail: str = ""
    fix: str = ""
