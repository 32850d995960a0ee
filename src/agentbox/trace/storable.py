# SPDX-License-Identifier: MIT
"""From what a program handed over to what a record can hold, with a marker wherever something is not stored as it was.

{"b64": ...}        bytes, or a string that is bytes in disguise (a file name that is not UTF-8)
{"wtf8": ...}       a string with half a character (only a guest's JavaScript makes those), base64
{"number": ...}     NaN, an infinity, or an integer that is no double, as text
{"truncated": ...}  something too long or too deep: {"bytes", "sha256"}, and "start" of a string
"""

from __future__ import annotations

import binascii

from agentbox.light import digests
from agentbox.trace.canonical import NotCanonicalError, dumps, integer, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_ARGS_BYTES = 64 << 10
MAX_RESULT_BYTES = 1 << 20
_LONG_STRING_CHARACTERS = 4096
_KEPT_CHARACTERS = 1024
_MAX_DEPTH = 32


def args_text(value: Any) -> str:
    """Canonical text of the arguments of a record, at most MAX_ARGS_BYTES; never fails."""
    return _bounded(value, MAX_ARGS_BYTES)


def result_text(value: Any) -> str:
    """Canonical text of a result, at most MAX_RESULT_BYTES; never fails."""
    return _bounded(value, MAX_RESULT_BYTES)


def _bounded(value: Any, most: int) -> str:
    try:
        text = dumps(value)
    except NotCanonicalError:
        value = storable(value)
        text = dumps(value)
    # A character is at most four bytes, so a short text needs no counting.
    if len(text) * 4 <= most or len(text.encode()) <= most:
        return text
    shorter = dumps(_shortened(value))
    if len(shorter.encode()) <= most:
        return shorter
    return dumps(_truncated(text.encode()))


def storable(value: Any, depth: int = 0) -> Any:
    """`value` with markers for everything that canonical JSON cannot hold."""
    match value:
        case None | bool():
            return value
        case str():
            return _string(str(value))
        case bytes() | bytearray() | memoryview():
            return {"b64": binascii.b2a_base64(value, newline=False).decode()}
        case int() | float():
            return _numeric(value)
        case dict() | list() | tuple() | set() | frozenset() if depth >= _MAX_DEPTH:
            return {"truncated": {"depth": depth}}
        case dict():
            return {_key(key): storable(item, depth + 1) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [storable(item, depth + 1) for item in value]
        case _:
            return {"type": type(value).__name__}


def _string(text: str) -> Any:
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        try:
            return {"b64": binascii.b2a_base64(text.encode("utf-8", "surrogateescape"), newline=False).decode()}
        except UnicodeEncodeError:
            return {"wtf8": binascii.b2a_base64(text.encode("utf-8", "surrogatepass"), newline=False).decode()}
    return text


def _key(key: Any) -> str:
    text = key if isinstance(key, str) else str(key)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _numeric(value: int | float) -> Any:
    try:
        if isinstance(value, int):
            integer(value)
            return int(value)
        number(value)
        return float(value)
    except NotCanonicalError:
        # Thousands of digits would be an error of Python's own; hexadecimal has no such limit.
        return {"number": hex(value) if isinstance(value, int) else repr(float(value))}


def _shortened(value: Any) -> Any:
    match value:
        case str() if len(value) > _LONG_STRING_CHARACTERS:
            return _truncated(value.encode(), value[:_KEPT_CHARACTERS])
        case dict():
            return {key: _shortened(item) for key, item in value.items()}
        case list() | tuple():
            return [_shortened(item) for item in value]
        case _:
            return value


def _truncated(data: bytes, start: str | None = None) -> dict[str, Any]:
    facts: dict[str, Any] = {"bytes": len(data), "sha256": digests.sha256(data).hexdigest()}
    if start is not None:
        facts["start"] = start
    return {"truncated": facts}
