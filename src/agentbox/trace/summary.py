# SPDX-License-Identifier: MIT
"""A record as one line for people. Whatever a guest put into it, the line holds only characters that stand still."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from agentbox.trace.record import Entry

_TELLING = ("path", "url", "argv", "host", "target")
_JSON_CHARACTERS = 60
_VALUE_CHARACTERS = 400


def summary(entry: Entry) -> str:
    """Index, kind, operation, the argument that tells most, and of how many that is told."""
    count = entry.args.get("count")
    times = f"  ({count} times)" if entry.kind == "deny" and type(count) is int else ""
    return f"{entry.i:>4}  {visible(entry.kind):<8} {visible(entry.op):<15} {_brief(entry.args)}{times}"


def visible(text: str) -> str:
    """The text with everything that is not printable as a backslash escape: control and direction characters, halves
    of characters, line separators.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _brief(args: dict[str, Any]) -> str:
    for name in _TELLING:
        # A program that was refused before it was loaded has a target, and no words yet.
        value = args.get(name)
        if value not in (None, []):
            text = " ".join(map(_text, value)) if isinstance(value, list) else _text(value)
            return text if len(text) <= _VALUE_CHARACTERS else f"{text[:_VALUE_CHARACTERS]}… ({len(text)} characters)"
    return visible(json.dumps(args, ensure_ascii=False))[:_JSON_CHARACTERS]


def _text(value: Any) -> str:
    match value:
        case str():
            return visible(value)
        case {"b64": str(encoded), **rest} if not rest:
            try:
                return visible(base64.b64decode(encoded, validate=True).decode("utf-8", "backslashreplace"))
            except (binascii.Error, ValueError):
                pass
        case {"truncated": {"start": str(start)}}:
            return f"{visible(start)}…"
    return visible(json.dumps(value, ensure_ascii=False))
