# SPDX-License-Identifier: MIT
"""Errors of the functions for agents, told so that the same error can be raised now and in a replay."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_DENIES = "agentbox: policy denies "
# Errors that are raised again by their name and their words alone.
_PLAIN = (*("ValueError", "TypeError", "LookupError", "OverflowError", "MemoryError", "RecursionError"),)


def told(error: BaseException) -> Any:
    """What is recorded of an error; None for one that is not to be recorded, as the end of the program is none."""
    if not isinstance(error, Exception):
        return None
    message = str(error)
    if isinstance(error, OSError):
        if message.startswith(_DENIES):
            return violation(message[len(_DENIES) :])
        return _of_system(error, message)
    if isinstance(error, UnicodeDecodeError):
        return {
            "type": "UnicodeDecodeError",
            "message": message,
            "encoding": error.encoding,
            "start": error.start,
            "end": error.end,
            "reason": error.reason,
            "bytes": bytes(error.object[error.start : error.end]),
        }
    # An error of a kind that not everybody knows is raised again as what it is one of.
    plain = [kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _PLAIN]
    return {"type": plain[0] if plain else "RuntimeError", "message": message}


def violation(text: str) -> Any:
    """What the policy denies: operation and target, as `net example.com`."""
    op, _, target = text.partition(" ")
    return {"type": "PolicyViolation", "message": f"policy denies {text}", "effect": op, "target": target}


def _of_system(error: OSError, message: str) -> Any:
    for kind in type(error).__mro__:
        # A subclass of the program's or of a module's own is told as what it is one of.
        if kind.__module__ == "builtins":
            break
    spec: dict[str, Any] = {"type": kind.__name__, "message": message}
    if error.errno is not None and error.strerror is not None:
        spec |= {"errno": error.errno, "reason": str(error.strerror)}
        name = error.filename
        if isinstance(name, bytes):
            name = name.decode("utf-8", "surrogateescape")
        if isinstance(name, str):
            spec["filename"] = name
    return spec
