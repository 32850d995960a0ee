# SPDX-License-Identifier: MIT
"""A program whose run must not tell whether its interpreter was warm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WARM = frozenset({"warm", "forked"})


@dataclass(frozen=True)
class Case:
    """`more` are further fields of the request; `start` are the ways that the pool may take."""

    code: str
    more: Mapping[str, Any] = field(default_factory=dict)
    start: frozenset[str] = WARM


def table(**programs: str | Case) -> dict[str, Case]:
    """Cases by what they are about."""
    return {name: Case(one) if isinstance(one, str) else one for name, one in programs.items()}
