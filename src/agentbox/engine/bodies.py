# SPDX-License-Identifier: MIT
"""Results without their content: what a file held, a server answered or a program wrote, as hash and number of bytes.

For traces that are shown to others. What was left out cannot be given again, so such a run is never replayed.
"""

from __future__ import annotations

import binascii

from agentbox.light import digests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Members of results that hold content; of a result that is text by itself, all of it is.
_CONTENT = frozenset({"body", "stdout", "stderr"})
# What a program said to its parent in Node, message by message, and what a terminal showed.
_LEFT_OUT = frozenset({"events", "terminal"})


def hashed(value: Any) -> Any:
    """A result, or the arguments of one, with hashes in place of content. Numbers, names, codes and errors stay."""
    if isinstance(value, str):
        return _text(value)
    if not isinstance(value, dict):
        return value
    if (whole := _bytes(value)) is not None:
        return whole
    return {name: _member(name, item) for name, item in value.items() if name not in _LEFT_OUT}


def _member(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return _text(value) if name in _CONTENT else value
    if not isinstance(value, dict):
        return value
    whole = _bytes(value)
    return whole if whole is not None else {inner: _member(inner, item) for inner, item in value.items()}


def _bytes(value: dict[str, Any]) -> dict[str, Any] | None:
    """What is said of bytes, None for what are none."""
    if isinstance(value.get("kept"), str):
        return {"sha256": value["kept"], **{name: value[name] for name in ("bytes", "cut") if name in value}}
    if value.keys() != {"b64"} or not isinstance(value["b64"], str):
        return None
    try:
        return _of(binascii.a2b_base64(value["b64"]))
    except (binascii.Error, ValueError):
        return {}


def _text(value: str) -> dict[str, Any]:
    return _of(value.encode("utf-8", "surrogatepass"))


def _of(data: bytes) -> dict[str, Any]:
    return {"sha256": digests.sha256(data).hexdigest(), "bytes": len(data)}
