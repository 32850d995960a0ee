# SPDX-License-Identifier: MIT
"""Functions for agents: effects that a run records with their results, and that a replay of it gives back.

    from agentbox import client as box

    text = box.read_text("data/notes.txt")
    out = box.run(["git", "status"])          # {"code", "stdout", "stderr"}
    page = box.get("https://api.github.com")  # {"status", "body", "sha256"}

They work in a program under `agentbox run`, or one that a server runs under a policy: its guard judges what they do, as
it judges everything, and records it. In a replay nothing happens outside: each call gets what the same call got when it
was recorded, errors too, or the replay ends with ReplayDivergence. Elsewhere every function raises UnguardedError.

What the policy does not allow raises `agentbox.PolicyViolation`, a PermissionError: `policy denies read /etc/passwd`.

This package also loads where the rest of agentbox is not installed, in any CPython from 3.9 on.
"""

from __future__ import annotations

import os

from agentbox.client import effect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    StrPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

__all__ = ["get", "now", "random", "read_text", "run", "write_text"]

_MAX_TEXT_BYTES = 64 << 20
_RANDOM_BITS = 53


def read_text(path: StrPath) -> str:
    """The text of a file, which is UTF-8; line ends are left as they are. At most 64 MiB.

    Raises PolicyViolation, OSError (FileNotFoundError, IsADirectoryError and the like), ValueError when it is too
    large (UnicodeDecodeError when it is no UTF-8).
    """
    name = effect.text("read_text", path)

    def read() -> str:
        with open(name, "rb") as file:
            data = file.read(_MAX_TEXT_BYTES + 1)
        if len(data) > _MAX_TEXT_BYTES:
            raise ValueError(f"agentbox.client.read_text: {name} is larger than {_MAX_TEXT_BYTES >> 20} MiB")
        return data.decode("utf-8")

    return str(effect.happens("read_text", "fs.read_text", {"path": name}, read))


def write_text(path: StrPath, text: str) -> dict[str, int]:
    """Write a file as UTF-8, in place of what it held; directories on the way are made. Gives `{"bytes"}`, its size.

    Raises PolicyViolation, OSError, TypeError when `text` is none, ValueError when UTF-8 cannot hold it.
    """
    name = effect.text("write_text", path)
    if not isinstance(text, str):
        raise TypeError(f"agentbox.client.write_text writes text, not {type(text).__name__}")
    data = str.encode(text, "utf-8")

    def write() -> dict[str, int]:
        try:
            file = open(name, "wb")  # noqa: SIM115 - what may fail is opening it
        except FileNotFoundError:
            os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
            file = open(name, "wb")  # noqa: SIM115
        with file:
            file.write(data)
        return {"bytes": len(data)}

    args = {"path": name, "sha256": effect.sha256(data)}
    found = effect.happens("write_text", "fs.write_text", args, write, again=True)
    return {"bytes": found["bytes"]}


def get(
    url: str,
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "GET",
    body: str | bytes | None = None,
    timeout_seconds: float = 30.0,
) -> dict[str, Any]:
    """Ask a web server: `{"status", "body", "sha256"}`, the body as text and the SHA-256 of its bytes. At most 64 MiB.

    Redirects are followed, at most ten, and each of their addresses is asked of the policy as the first one is. Only
    `http` and `https` exist here. `timeout_seconds` is for all of it, redirects too. Secrets (what `Authorization`,
    `Cookie` and headers of such names hold, passwords and tokens in the address) are not recorded.

    Raises PolicyViolation; urllib.error.HTTPError for a status of 400 or more (its `read()` gives the body);
    urllib.error.URLError when there is no connection; TimeoutError; ValueError for an address that is none.
    """
    from agentbox.client import redaction

    if not isinstance(url, str) or not isinstance(method, str):
        raise TypeError("agentbox.client.get takes an address and a method as text")
    url, method = str.__str__(url), str.__str__(method)
    seconds = effect.seconds("get", timeout_seconds)
    if seconds is None:
        raise ValueError("agentbox.client.get needs a timeout")
    given = {str(name): str(value) for name, value in dict(headers or {}).items()}
    data = effect.data("get", body)
    args: dict[str, Any] = {"url": redaction.url(url)}
    if method != "GET":
        args["method"] = method
    if given:
        args["headers"] = redaction.headers(given)
    if data is not None:
        args["body_sha256"] = effect.sha256(data)
    if seconds != 30:
        args["timeout_seconds"] = seconds

    def fetch() -> dict[str, Any]:
        from agentbox.client import web

        found = web.fetch(url, method, given, data, float(seconds))
        return {
            "status": found.status,
            "body": found.data.decode("utf-8", "replace"),
            "sha256": effect.sha256(found.data),
        }

    page = effect.happens("get", "net.get", args, fetch)
    return {"status": page["status"], "body": page["body"], "sha256": page["sha256"]}


def run(
    argv: Sequence[StrPath], *, timeout_seconds: float | None = None, stdin: str | bytes | None = None
) -> dict[str, Any]:
    """Run a program to its end: `{"code", "stdout", "stderr"}`, code -n after signal n, its output as text.

    `stdin` is given to it; without, it reads nothing. Raises PolicyViolation; FileNotFoundError and other OSErrors when
    it cannot be started; subprocess.TimeoutExpired after `timeout_seconds`, when it and what it started were killed.
    """
    if isinstance(argv, (str, bytes)):
        raise TypeError("agentbox.client.run takes a list of words, as ['git', 'status']")
    words = [effect.text("run", word) for word in argv]
    if not words:
        raise ValueError("agentbox.client.run needs a program to run")
    seconds = effect.seconds("run", timeout_seconds)
    data = effect.data("run", stdin)
    args: dict[str, Any] = {"argv": words}
    if seconds is not None:
        args["timeout_seconds"] = seconds
    if data is not None:
        args["stdin_sha256"] = effect.sha256(data)

    def start() -> dict[str, Any]:
        from agentbox.client import program

        return program.run(words, seconds, data)

    done = effect.happens("run", "proc.run", args, start)
    return {"code": done["code"], "stdout": done["stdout"], "stderr": done["stderr"]}


def now() -> float:
    """The time, in seconds since 1970."""
    from time import time

    return float(effect.happens("now", "clock.now", {}, time))


def random() -> float:
    """A number from 0 up to, not including, 1."""

    def draw() -> float:
        return (int.from_bytes(os.urandom(7), "big") >> 3) / (1 << _RANDOM_BITS)

    return float(effect.happens("random", "rand.random", {}, draw))
