# SPDX-License-Identifier: MIT
"""Errors of the functions for agents, told so that the same error can be raised now and in a replay."""

from __future__ import annotations

import builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_DENIES = "agentbox: policy denies "
# Errors that are raised again by their name and their words alone.
_PLAIN = ("ValueError", "TypeError", "LookupError", "OverflowError", "MemoryError", "RecursionError")
# More than this of a text that cannot be decoded is not needed to say where it is wrong.
_MAX_DECODED = 1 << 20


def told(error: BaseException) -> dict[str, Any] | None:
    """What is recorded of an error; None for one that is not: of agentbox itself, or the end of the program."""
    if not isinstance(error, Exception) or type(error).__name__ in ("ReplayDivergence", "CheckpointError"):
        return None
    message = str(error)
    kind = type(error).__name__
    if kind == "HTTPError":
        return _of_http(error, message)
    if kind == "URLError":
        cause = getattr(error, "reason", None)
        spec: dict[str, Any] = {"type": kind, "message": str(cause)}
        if isinstance(cause, Exception):
            spec["cause"] = told(cause)
        return spec
    if isinstance(error, OSError):
        if message.startswith(_DENIES):
            return _violation(message[len(_DENIES) :])
        return _of_system(error, message)
    if kind == "TimeoutExpired":
        return {"type": kind, "message": message, **_of_timeout(error)}
    if isinstance(error, UnicodeDecodeError):
        return {
            "type": kind,
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


def raised(spec: dict[str, Any]) -> BaseException:
    """The error of which that was told."""
    kind, message = spec["type"], spec["message"]
    if kind == "PolicyViolation":
        return _violated(message, spec)
    if kind == "UnicodeDecodeError":
        start, end = spec["start"], spec["end"]
        if end > _MAX_DECODED:
            return ValueError(message)
        return UnicodeDecodeError(spec["encoding"], b"\0" * start + bytes(spec["bytes"]), start, end, spec["reason"])
    if kind == "TimeoutExpired":
        from subprocess import TimeoutExpired

        return TimeoutExpired(spec["argv"], spec["timeout_seconds"], spec["stdout"], spec["stderr"])
    if kind == "URLError":
        from urllib.error import URLError

        cause = spec.get("cause")
        return URLError(message if cause is None else raised(cause))
    if kind == "HTTPError":
        return _http_error(spec)
    found = getattr(builtins, kind, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return RuntimeError(message)
    if issubclass(found, OSError) and spec.get("errno") is not None:
        name = spec.get("filename")
        return found(spec["errno"], spec["reason"]) if name is None else found(spec["errno"], spec["reason"], name)
    return found(message)


def _violation(text: str) -> dict[str, Any]:
    op, _, target = text.partition(" ")
    return {"type": "PolicyViolation", "message": f"policy denies {text}", "effect": op, "target": target}


def _violated(message: str, spec: dict[str, Any]) -> Exception:
    try:
        from agentbox.errors import PolicyViolation
    except ImportError:
        return PermissionError(message)
    error = PolicyViolation(message, effect=spec.get("effect", ""), target=spec.get("target", ""))
    error.errno = 13
    return error


def _of_system(error: OSError, message: str) -> dict[str, Any]:
    # A subclass of a module's own is told as what it is one of.
    kind = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
    spec: dict[str, Any] = {"type": kind.__name__, "message": message}
    if error.errno is not None and error.strerror is not None:
        spec.update(errno=error.errno, reason=str(error.strerror))
        name = error.filename
        if isinstance(name, bytes):
            name = name.decode("utf-8", "surrogateescape")
        if isinstance(name, str):
            spec["filename"] = str.__str__(name)
    return spec


def _of_timeout(error: Any) -> dict[str, Any]:
    return {
        "argv": list(error.cmd),
        "timeout_seconds": error.timeout,
        "stdout": error.stdout or b"",
        "stderr": error.stderr or b"",
    }


def _of_http(error: Any, message: str) -> dict[str, Any]:
    return {
        "type": "HTTPError",
        "message": message,
        "url": error.url,
        "code": error.code,
        "reason": str(error.reason),
        "headers": [[name, value] for name, value in error.headers.items()],
        "body": error.read(),
    }


def _http_error(spec: dict[str, Any]) -> Exception:
    from email.message import Message
    from io import BytesIO
    from urllib.error import HTTPError

    headers = Message()
    for name, value in spec["headers"]:
        headers[name] = value
    return HTTPError(spec["url"], spec["code"], spec["reason"], headers, BytesIO(spec["body"]))
