# SPDX-License-Identifier: MIT
"""Words of a shell command line, without any expansion: what an `exec:` rule is made of."""

from __future__ import annotations

_BLANK = " \t"


class UnbalancedError(ValueError):
    """A quote has no partner, or a backslash has nothing after it. `offset` is where it stands, from 0."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


def split_words(text: str) -> tuple[str, ...]:
    """The words of `text`.

    White space separates words; within single quotes everything is literal; within double quotes a backslash takes
    the special meaning from `"` and `\\` only; outside quotes it does so from any character. Raises UnbalancedError.
    """
    words: list[str] = []
    word: list[str] = []
    started = False
    at = 0
    while at < len(text):
        character = text[at]
        if character in _BLANK:
            if started:
                words.append("".join(word))
            word, started = [], False
            at += 1
        elif character == "'":
            end = text.find("'", at + 1)
            if end < 0:
                raise UnbalancedError("unbalanced quote '", at)
            word.append(text[at + 1 : end])
            started, at = True, end + 1
        elif character == '"':
            part, at = _double_quoted(text, at)
            word.append(part)
            started = True
        elif character == "\\":
            if at + 1 == len(text):
                raise UnbalancedError("a backslash at the end escapes nothing", at)
            word.append(text[at + 1])
            started, at = True, at + 2
        else:
            word.append(character)
            started, at = True, at + 1
    if started:
        words.append("".join(word))
    return tuple(words)


def _double_quoted(text: str, start: int) -> tuple[str, int]:
    """The text within the double quotes that open at `start`, and where the word goes on."""
    part: list[str] = []
    at = start + 1
    while at < len(text):
        character = text[at]
        if character == '"':
            return "".join(part), at + 1
        if character == "\\" and text[at + 1 : at + 2] in ('"', "\\"):
            part.append(text[at + 1])
            at += 2
        else:
            part.append(character)
            at += 1
    raise UnbalancedError('unbalanced quote "', start)
