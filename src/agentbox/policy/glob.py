# SPDX-License-Identifier: MIT
"""Wildcards without regular expressions: one matcher for host names, environment names and parts of a path.

`*` is any run of characters, `?` is one character, and, where classes are on, `[ab]`, `[a-z]` and `[!a]` are one
character of a set. A `[` without its `]` is itself. Matching goes back to the last `*` only, so no text can make it
slow: at most len(pattern) * len(text) steps.
"""

from __future__ import annotations

from agentbox.policy.record import TYPE_CHECKING

# A token is a run of characters, ANY, STAR or a class (negated, ranges of code points).
ANY = 1
STAR = 2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar, Union

    CharacterClass = tuple[bool, tuple[tuple[str, str], ...]]
    Token = Union[str, int, CharacterClass]  # noqa: UP007 - CPython 3.9
    Tokens = tuple[Token, ...]
    _A = TypeVar("_A")
    _B = TypeVar("_B")


def is_pattern(text: str, *, classes: bool = False) -> bool:
    """Whether `text` has a wildcard."""
    return "*" in text or "?" in text or (classes and "[" in text and "]" in text)


def tokens(pattern: str, *, classes: bool = False) -> Tokens:
    """The pattern in the form that `matches` takes."""
    found: list[Token] = []
    literal = ""
    at = 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        parsed = _character_class(pattern, at) if classes and character == "[" else None
        if character not in "*?" and parsed is None:
            literal += character
            continue
        if literal:
            found.append(literal)
            literal = ""
        if parsed is not None:
            token, at = parsed
            found.append(token)
        elif character == "?":
            found.append(ANY)
        elif not found or found[-1] != STAR:
            found.append(STAR)
    if literal:
        found.append(literal)
    return tuple(found)


def matches(pattern: Tokens, text: str) -> bool:
    """Whether the whole of `text` has the form of the pattern."""
    count, size = len(pattern), len(text)
    at = position = 0
    star, resume = -1, 0
    while True:
        if at < count:
            token = pattern[at]
            if isinstance(token, str):
                if text.startswith(token, position):
                    at += 1
                    position += len(token)
                    continue
            elif token == STAR:
                star, resume = at, position
                at += 1
                continue
            elif position < size and (token == ANY or _in_class(token, text[position])):
                at += 1
                position += 1
                continue
        elif position == size:
            return True
        if star < 0 or resume >= size:
            return False
        resume += 1
        following = pattern[star + 1] if star + 1 < count else None
        if isinstance(following, str):
            resume = text.find(following, resume) if star + 2 < count else max(resume, size - len(following))
            if resume < 0:
                return False
        at, position = star + 1, resume


def greedy(
    pattern: Sequence[_A], text: Sequence[_B], is_star: Callable[[_A], bool], one: Callable[[_A, _B], bool]
) -> bool:
    """Wildcard matching over any sequence: `is_star` items take any run, each other item takes one by `one`."""
    at = position = 0
    star, resume = -1, 0
    while position < len(text):
        if at < len(pattern) and is_star(pattern[at]):
            star, resume = at, position
            at += 1
        elif at < len(pattern) and one(pattern[at], text[position]):
            at += 1
            position += 1
        elif star >= 0:
            resume += 1
            at, position = star + 1, resume
        else:
            return False
    return all(is_star(item) for item in pattern[at:])


def _in_class(token: Token, character: str) -> bool:
    if not isinstance(token, tuple):
        return False
    negated, ranges = token
    return negated != any(low <= character <= high for low, high in ranges)


def _character_class(pattern: str, at: int) -> tuple[Token, int] | None:
    """The class whose `[` stands before `at` and where it ends; None when it has no `]`."""
    negated = pattern[at : at + 1] == "!"
    first = at + (1 if negated else 0)
    # A `]` directly after `[` or `[!` is a member.
    end = pattern.find("]", first + 1)
    if end < 0:
        return None
    members = pattern[first:end]
    ranges: list[tuple[str, str]] = []
    index = 0
    while index < len(members):
        if members[index + 1 : index + 2] == "-" and index + 2 < len(members):
            ranges.append((members[index], members[index + 2]))
            index += 3
        else:
            ranges.append((members[index], members[index]))
            index += 1
    return (negated, tuple(ranges)), end + 1
