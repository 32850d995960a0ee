# SPDX-License-Identifier: MIT
"""What is fuzzed: a function of bytes that reads hostile input and checks what must hold of any input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """One parser. `check` may raise nothing, whatever it is given: a refusal is a result, not an exception.

    `seeds` are valid inputs to start from, `tokens` pieces that are worth putting anywhere.
    """

    name: str
    check: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    tokens: tuple[bytes, ...] = ()
