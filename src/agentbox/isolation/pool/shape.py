# SPDX-License-Identifier: MIT
"""How large a warm pool is and how long its parts live."""

from __future__ import annotations

from agentbox.records import dataclass


@dataclass(frozen=True, slots=True)
class PoolShape:
    """`size` boxes in stock for each owner, for at most `owners` of them, each with an interpreter of its own that has
    imported `modules` and lives for `runs` children or `seconds`; beside them `node_size` boxes with Node for all."""

    size: int
    owners: int
    modules: tuple[str, ...]
    runs: int
    seconds: float
    node_size: int = 0
