# SPDX-License-Identifier: MIT
"""The `max=SIZE` option of a path."""

from __future__ import annotations

import re

from agentbox.policy.rule import Value

_OPTION = re.compile(r"(.*?)[ \t]+max=(\S*)\Z", re.DOTALL)
_SIZE = re.compile(r"([0-9]{1,15})(B|KB|MB|GB|TB)?\Z", re.IGNORECASE)
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
# The largest whole number that a JSON reader in any language keeps.
MAX_BYTES = (1 << 53) - 1


def split_cap(value: Value) -> tuple[Value, int | None]:
    """The path without its option, and the cap in bytes; KB, MB, GB and TB are powers of 1024."""
    found = _OPTION.match(value.text)
    if found is None:
        return value, None
    path, size = found.groups()
    parsed = _SIZE.match(size)
    amount = int(parsed.group(1)) * _UNITS[(parsed.group(2) or "B").upper()] if parsed else 0
    if not 1 <= amount <= MAX_BYTES:
        value.fail("bad_size", f"max={size} is no size", "for example max=10MB", found.start(2))
    return Value(path, value.place, value.source), amount


def refuse_cap(value: Value, verb: str) -> None:
    """An error when a path that is only read has the option."""
    found = _OPTION.match(value.text)
    if found is not None:
        value.fail("bad_size", f"max= has no meaning after '{verb}'", "only `write:` has a cap", found.start(2) - 4)
