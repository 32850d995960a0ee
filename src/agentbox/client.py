# SPDX-License-Identifier: MIT
"""Functions for agents: effects that a run records with their results, and that a replay of it gives back.

    from agentbox import client as box

    text = box.read_text("data/notes.txt")
    out = box.run(["git", "status"])          # {"code", "stdout", "stderr"}
    page = box.get("https://api.github.com")  # {"status", "body", "sha256"}

They work in a program under `agentbox run`, or one that a server runs under a policy: its guard does what they ask for,
and records it. In a replay nothing happens outside: each call gets what the same call got when it was recorded, errors
too, or the replay ends with ReplayDivergence. Elsewhere every function raises UnguardedError.

What the policy does not allow raises `agentbox.PolicyViolation`, a PermissionError: `policy denies read /etc/passwd`.

This module also loads where the rest of agentbox is not installed, in any CPython from 3.9 on.
"""

from __future__ import annotations

import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from typing import Any

    StrPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

__all__ = ["get", "now", "random", "read_text", "run", "write_text"]

_EVENT = "agentbox"
_audit = sys.audit
# More than this of a text that cannot be decoded is not needed to say where it is wrong.
_MAX_DECODED = 1 << 20


def read_text(path: StrPath) -> str:
    """The text of a file, which is UTF-8; line ends are left as they are.

    Raises PolicyViolation, OSError (FileNotFoundError, IsADirectoryError and the like), UnicodeDecodeError.
    """
    text: str = _ask("read_text", path)
    return text


def write_text(path: StrPath, text: str) -> dict[str, int]:
    """Write a file as UTF-8, in place of what it held; directories on the way are made. Gives `{"bytes"}`, its size.

    Raises PolicyViolation, OSError, TypeError when `text` is none, UnicodeEncodeError.
    """
    written: dict[str, int] = _ask("write_text", path, text)
    return written


def get(
    url: str,
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "GET",
    body: str | bytes | None = None,
    timeout_seconds: float = 30.0,
) -> dict[str, Any]:
    """Ask a web server: `{"status", "body", "sha256"}`, the body as text and the SHA-256 of its bytes.

    Redirects are followed, at most ten, and each of their addresses is asked of the policy as the first one is. Only
    `http` and `https` exist here. `timeout_seconds` is for all of it, redirects too. Secrets (what `Authorization`,
    `Cookie` and headers of such names hold, passwords and tokens in the address) are not recorded.

    Raises PolicyViolation; urllib.error.HTTPError for a status of 400 or more (its `read()` gives the body);
    urllib.error.URLError when there is no connection; TimeoutError; ValueError for an address that is none.
    """
    page: dict[str, Any] = _ask("get", url, headers, method, body, timeout_seconds)
    return page


def run(
    argv: Sequence[StrPath], *, timeout_seconds: float | None = None, stdin: str | bytes | None = None
) -> dict[str, Any]:
    """Run a program to its end: `{"code", "stdout", "stderr"}`, code -n after signal n, its output as text.

    `stdin` is given to it; without, it reads nothing. Raises PolicyViolation; FileNotFoundError and other OSErrors when
    it cannot be started; subprocess.TimeoutExpired after `timeout_seconds`, when it and what it started were killed.
    """
    done: dict[str, Any] = _ask("run", argv, timeout_seconds, stdin)
    return done


def now() -> float:
    """The time, in seconds since 1970."""
    moment: float = _ask("now")
    return moment


def random() -> float:
    """A number from 0 up to, not including, 1."""
    number: float = _ask("random")
    return number


def _ask(name: str, *arguments: Any) -> Any:
    """Let the guard of this process do it. Nothing of the guard can be reached from here: it hears an audit event."""
    reply: list[Any] = []
    _audit(_EVENT, "client", (name, *arguments), reply)
    if not reply:
        raise _outside(name)
    failed, value = reply
    if failed:
        raise value
    raised, value = value
    if raised:
        raise _error(value)
    return value


def _outside(name: str) -> Exception:
    message = f"agentbox.client.{name}() works in a run only: start the program with `agentbox run -- python ...`"
    try:
        from agentbox.errors import UnguardedError
    except ImportError:
        return RuntimeError(message)
    return UnguardedError(message, hint="in a request to a server, give it a `policy`")


def _error(told: dict[str, Any]) -> BaseException:
    """An error as it is told by the guard, which is the same whether it happened now or when it was recorded."""
    kind, message = told["type"], told["message"]
    if kind == "PolicyViolation":
        return _violation(message, told)
    if kind == "UnicodeDecodeError":
        start, end = told["start"], told["end"]
        if end <= _MAX_DECODED:
            data = b"\0" * start + bytes(told["bytes"])
            return UnicodeDecodeError(told["encoding"], data, start, end, told["reason"])
        return ValueError(message)
    if kind == "TimeoutExpired":
        from subprocess import TimeoutExpired

        return TimeoutExpired(told["argv"], told["timeout_seconds"], told["stdout"], told["stderr"])
    if kind in ("HTTPError", "URLError"):
        return _web_error(kind, told)
    found = getattr(builtins, kind, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        found = RuntimeError
    if issubclass(found, OSError) and told.get("errno") is not None:
        name = told.get("filename")
        return found(told["errno"], told["reason"]) if name is None else found(told["errno"], told["reason"], name)
    try:
        return found(message)
    except TypeError:
        return RuntimeError(message)


def _web_error(kind: str, told: dict[str, Any]) -> Exception:
    from urllib.error import HTTPError, URLError

    if kind == "URLError":
        cause = told.get("cause")
        return URLError(told["message"] if cause is None else _error(cause))
    from email.message import Message
    from io import BytesIO

    headers = Message()
    for name, value in told["headers"]:
        headers[name] = value
    return HTTPError(told["url"], told["code"], told["reason"], headers, BytesIO(told["body"]))


def _violation(message: str, told: dict[str, Any]) -> Exception:
    try:
        from agentbox.errors import PolicyViolation
    except ImportError:
        return PermissionError(message)
    error = PolicyViolation(message, effect=told.get("effect", ""), target=told.get("target", ""))
    error.errno = 13
    return error
