# SPDX-License-Identifier: MIT
"""Wildcards of rules, over tables: tokens within a name, and parts within a path.

A token is a character, 1 for any one, 2 for any run, or [negated, ranges]. A part is a list of tokens or "**".
Matching goes back to the last run only, so no text can make it slow.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ANY = 1
_RUN = 2


def matches(tokens: Any, text: str) -> bool:
    """Whether the whole of a text has the form of the tokens."""
    return _greedy(tokens, text, _is_run, _fits)


def covers(target: Any, path: str) -> bool:
    """Whether the target of a path rule covers a plain path: the path itself and everything below it."""
    base = target[1]
    if not is_below(path, base):
        return False
    pattern = target[2]
    if not pattern:
        return True
    rest = path[len(base) :].strip("/")
    return _greedy([*pattern, "**"], rest.split("/") if rest else [], _is_deep, matches)


def is_below(path: str, directory: str) -> bool:
    """Whether a plain path is `directory` or lies below it."""
    return path == directory or directory == "/" or path.startswith(directory + "/")


def is_plain(path: str) -> bool:
    """Whether a path is absolute and has no empty part, `.`, `..` or NUL."""
    if path[:1] != "/" or "\0" in path or "//" in path:
        return False
    if "/." in path:
        for part in path.split("/"):
            if part in (".", ".."):
                return False
    return path == "/" or path[-1] != "/"


def _greedy(pattern: Any, text: Any, is_run: Any, one: Any) -> bool:
    at = position = resume = 0
    run = -1
    while position < len(text):
        if at < len(pattern) and is_run(pattern[at]):
            run, resume = at, position
            at += 1
        elif at < len(pattern) and one(pattern[at], text[position]):
            at += 1
            position += 1
        elif run >= 0:
            resume += 1
            at, position = run + 1, resume
        else:
            return False
    return all(is_run(item) for item in pattern[at:])


def _is_run(token: Any) -> bool:
    return bool(token == _RUN)


def _is_deep(part: Any) -> bool:
    return bool(part == "**")


def _fits(token: Any, character: str) -> bool:
    if type(token) is str:
        return token == character
    if type(token) is int:
        return token == _ANY
    negated, ranges = token
    found = False
    for low, high in ranges:
        if low <= character <= high:
            found = True
    return bool(negated) != found
