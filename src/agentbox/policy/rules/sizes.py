# SPDX-License-Identifier: MIT
"""The `max=SIZE` option of a path."""

from __future__ import annotations

from agentbox.policy.patterns import Pattern
from agentbox.policy.rule import Value

_SIZE = Pattern(r"([0-9]{1,15})(B|KB|MB|GB|TB)?\Z", ignoring_case=True)
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
# The largest whole number that a JSON reader in any language keeps.
MAX_BYTES = (1 << 53) - 1


def split_cap(value: Value) -> tuple[Value, int | None]:
    """The path without its option, and the cap in bytes; KB, MB, GB and TB are powers of 1024."""
    at = _option_at(value.text)
    if at < 0:
        return value, None
    path, size = value.text[:at].rstrip(" \t"), value.text[at + len(" max=") :]
    parsed = _SIZE.match(size)
    amount = int(parsed.group(1)) * _UNITS[(parsed.group(2) or "B").upper()] if parsed else 0
    if not 1 <= amount <= MAX_BYTES:
        value.fail("bad_size", f"max={size} is no size", "for example max=10MB", at + len(" max="))
    return Value(path, value.place, value.source), amount


def refuse_cap(value: Value, verb: str) -> None:
    """An error when a path that is only read has the option."""
    at = _option_at(value.text)
    if at >= 0:
        value.fail("bad_size", f"max= has no meaning after '{verb}'", "only `write:` has a cap", at + 1)


def _option_at(text: str) -> int:
    """Where the white space before a last `max=` stands; -1 when the text does not end in one."""
    at = max(text.rfind(" max="), text.rfind("\tmax="))
    return at if at >= 0 and not any(blank in text[at + 1 :] for blank in " \t") else -1
