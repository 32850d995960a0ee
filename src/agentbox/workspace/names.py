# SPDX-License-Identifier: MIT
"""Rules for the names of files in a workspace, and a way to show any name in a message."""

from __future__ import annotations

from agentbox.errors import InvalidRequestError

MAX_PATH_BYTES = 4096
MAX_PART_BYTES = 255
MAX_DEPTH = 64

_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_HINT = "use a relative path of plain names with '/' between them, like data/in.csv"


def shown(name: str | bytes, limit: int = 200) -> str:
    """`name` on one line for a message: control and undecodable characters escaped, at most `limit` characters."""
    text = name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name
    escaped = "".join(c if c.isprintable() else _escape(c) for c in text[: limit + 1])
    return escaped if len(escaped) <= limit else escaped[: limit - 3] + "..."


def _escape(character: str) -> str:
    # By hand: a codec is loaded on first use, and this is called while the thread acts as a guest, who may not be
    # allowed to read the interpreter's own library; Python then remembers that there is no such codec.
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def part_fault(part: bytes) -> str:
    """What is wrong with one component of a path, '' when nothing is."""
    if not part:
        return "has an empty part"
    if part == b".":
        return "has a '.' part"
    if part == b"..":
        return "has a '..' part"
    if b"\0" in part:
        return "has a NUL character"
    if b"/" in part:
        return "has a '/' inside a part"
    if len(part) > MAX_PART_BYTES:
        return f"has a part over {MAX_PART_BYTES} bytes"
    return ""


def path_fault(path: bytes) -> str:
    """What is wrong with a relative POSIX path, '' when nothing is."""
    if not path:
        return "is empty"
    if path.startswith(b"/"):
        return "is absolute"
    if len(path) > MAX_PATH_BYTES:
        return f"is over {MAX_PATH_BYTES} bytes"
    if path.endswith(b"/"):
        return "ends with '/'"
    parts = path.split(b"/")
    if len(parts) > MAX_DEPTH:
        return f"is over {MAX_DEPTH} parts deep"
    return next(filter(None, map(part_fault, parts)), "")


def checked_path(text: str) -> tuple[str, ...]:
    """The parts of a relative POSIX path that a request names.

    Raises InvalidRequestError naming the path when it is empty, absolute, over 4096 bytes or 64 parts, ends with '/',
    has an empty, '.' or '..' part, a part over 255 bytes or a NUL, or cannot be encoded.
    """
    try:
        fault = path_fault(text.encode("utf-8"))
    except UnicodeEncodeError:
        fault = "cannot be encoded as UTF-8"
    if fault:
        raise InvalidRequestError(f"path '{shown(text)}' {fault}", hint=_HINT, path=text)
    return tuple(text.split("/"))
