# SPDX-License-Identifier: MIT
"""Paths of rules: what one covers.

A rule covers the paths that match it and everything below them. Paths are compared part by part, never as text, so
`./data` does not cover `./data-secret`.
"""

from __future__ import annotations

from agentbox.policy.glob import STAR, greedy, matches
from agentbox.policy.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentbox.policy.glob import Tokens
    from agentbox.policy.rule import PathTarget

DOUBLE_STAR: Tokens = (STAR, STAR)


def lexical(path: str) -> str:
    """An absolute path without empty parts, `.` and `..`, as if there were no links."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def is_plain(path: str) -> bool:
    """Whether a path is absolute and has no empty part, `.`, `..` or NUL: what a resolver gives."""
    if path[:1] != "/" or "\0" in path or "//" in path:
        return False
    if "/." in path:
        parts = path.split("/")
        if "." in parts or ".." in parts:
            return False
    return path[-1] != "/" or path == "/"


def upwards(path: str) -> Iterator[str]:
    """A plain path and each of its parents up to `/`."""
    while path:
        yield path
        path = path[: path.rfind("/")]
    yield "/"


def is_below(path: str, directory: str) -> bool:
    """Whether a plain path is `directory` or lies below it."""
    return path == directory or directory == "/" or path.startswith(directory + "/")


def covers(target: PathTarget, path: str) -> bool:
    """Whether a rule's target covers a plain path."""
    if not is_below(path, target.path):
        return False
    if not target.pattern:
        return True
    rest = path[len(target.path) :].strip("/")
    # `**` at the end of the pattern makes "and everything below" out of "matches".
    return greedy((*target.pattern, DOUBLE_STAR), rest.split("/") if rest else [], _is_double_star, matches)


def _is_double_star(part: Tokens) -> bool:
    return part is DOUBLE_STAR or part == DOUBLE_STAR
