# SPDX-License-Identifier: MIT
"""One effect of a function for agents: begun, done and recorded; or served, in a replay.

Nothing of the guard can be reached from here. It hears audit events, as it hears of every file that is opened; what
happens between two of them it judges like anything else that the program does.
"""

from __future__ import annotations

import os
import sys

from agentbox.client import told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_EVENT = "agentbox"
_audit = sys.audit


def happens(name: str, op: str, args: dict[str, Any], act: Callable[[], Any], *, again: bool = False) -> Any:
    """Do an effect and record it, or give what was recorded, errors included. `again`: it is done in a replay too, to
    the copy that stands in for the project. Raises UnguardedError outside a run, ReplayDivergence."""
    served, found = ask(name, "begin", op, args)
    if served:
        if "error" in found:
            raise told.raised(found["error"])
        if again:
            _again(name, act)
        return found["result"]
    try:
        result = act()
    except BaseException as error:
        spec = told.told(error)
        if spec is None:
            ask(name, "leave")
            raise _public(error) from None
        ask(name, "end", op, args, {"error": spec})
        raise told.raised(spec) from None
    ask(name, "end", op, args, {"result": result})
    return result


def _again(name: str, act: Callable[[], Any]) -> None:
    ask(name, "enter")
    try:
        act()
    except OSError:
        # Whoever looks at it finds out.
        return
    finally:
        ask(name, "leave")


def ask(name: str, what: str, *arguments: Any) -> Any:
    """What the guard answers. Raises what it refuses by, and UnguardedError where there is none."""
    reply: list[Any] = []
    _audit(_EVENT, "client", (what, *arguments), reply)
    if not reply:
        raise _outside(name)
    failed, value = reply
    if failed:
        raise _public(value)
    return value


def text(name: str, given: Any) -> str:
    """The text of a path or a word, asked for once: whatever it says later, this is what is used. Raises TypeError."""
    if not isinstance(given, (str, bytes)):
        if not hasattr(type(given), "__fspath__"):
            raise TypeError(f"agentbox.client.{name} takes text or a path, not {type(given).__name__}")
        given = os.fspath(given)
    return str.__str__(given) if isinstance(given, str) else os.fsdecode(given)


def data(name: str, given: Any) -> bytes | None:
    """Bytes of what is text or bytes. Raises TypeError."""
    if given is None:
        return None
    if isinstance(given, str):
        return str.encode(given, "utf-8")
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given)
    raise TypeError(f"agentbox.client.{name} takes text or bytes here, not {type(given).__name__}")


def seconds(name: str, given: Any) -> float | int | None:
    """A timeout as it is recorded. Raises ValueError."""
    if given is None:
        return None
    number = float(given)
    if not 0 < number < float("inf"):
        raise ValueError(f"agentbox.client.{name}: timeout_seconds is a number above 0, not {given!r}")
    return int(number) if number == int(number) else number


def sha256(content: bytes) -> str:
    """The hash of bytes, as it is recorded."""
    from hashlib import sha256

    return sha256(content).hexdigest()


def _public(error: BaseException) -> BaseException:
    """An error of the guard as the one of the same name that a program can import."""
    if isinstance(error, Exception) and type(error).__module__ == "agentbox":
        try:
            from agentbox import errors
        except ImportError:
            return error
        found: BaseException = getattr(errors, type(error).__name__, type(error))(str(error))
        return found
    return error


def _outside(name: str) -> Exception:
    message = f"agentbox.client.{name}() works in a run only: start the program with `agentbox run -- python ...`"
    try:
        from agentbox.errors import UnguardedError
    except ImportError:
        return RuntimeError(message)
    return UnguardedError(message, hint="in a request to a server, give it a `policy`")
