# SPDX-License-Identifier: MIT
"""Sizes and counts as users of containers write them: "2g", "512m", "1.5"."""

from __future__ import annotations

import re

from agentbox.errors import SandboxError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)(?:i?b)?\Z", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def megabytes(value: str | int, name: str) -> int:
    """A size as megabytes of 2**20 bytes; a number alone is bytes, as Docker has it. Raises SandboxError."""
    found = _SIZE.match(str(value).strip())
    size = int(float(found[1]) * _UNITS[found[2].lower()]) >> 20 if found else 0
    if size < 1:
        raise SandboxError(f"{name}={value!r} is no size of a megabyte or more", hint='for example "512m" or "2g"')
    return size


def processors(value: str | float) -> float:
    """A number of CPUs. Raises SandboxError."""
    try:
        number = float(value)
    except ValueError:
        number = 0
    if not 0.01 <= number <= 4096:
        raise SandboxError(f"cpus={value!r} is no number of CPUs", hint='for example "0.5" or "2"')
    return number
