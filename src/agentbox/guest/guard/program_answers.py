# SPDX-License-Identifier: MIT
"""Questions about programs, answered from a policy's tables: the file that will run counts, and the name it gets."""

from __future__ import annotations

from .matching import is_below, is_plain
from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_TARGET = 5
_WORDS, _PROGRAM, _LIBEXEC = 1, 2, 3
_VERSION = "0123456789.-"


@sealed
class Programs:
    """The exec rules of one policy."""

    def __init__(self, grants: Any, denials: Any) -> None:
        self._grants = [row for row in grants if row[_TARGET][0] == "exec" and row[_TARGET][_PROGRAM] is not None]
        self._denials = [row for row in denials if row[_TARGET][0] == "exec"]

    def start(self, argv: Any, program: Any, parent: Any) -> Any:
        """Whether a resolved program may be started with these words."""
        if type(argv) is not tuple or not argv or not argv[0] or [word for word in argv if type(word) is not str]:
            return False, None, "a program is started with a list of words, its name first", None
        for row in self._denials:
            if _denied(row[_TARGET], argv, program):
                return False, row, "denied", None
        if type(program) is not str or not is_plain(program):
            return False, None, "there is no such program", None
        for row in self._grants:
            target = row[_TARGET]
            if target[_PROGRAM] == program and (parent == program or _has_words(target[_WORDS], argv)):
                return True, row, "", None
        for row in self._grants:
            target = row[_TARGET]
            for directory in target[_LIBEXEC]:
                if is_below(program, directory) and _is_from(target, directory, parent):
                    return True, row, "", None
        return False, None, "no `exec:` rule allows this program with these arguments", None


def _has_words(words: Any, argv: Any) -> bool:
    return _same_name(argv[0], words[0]) and list(argv[1 : len(words)]) == words[1:]


def _same_name(called: str, named: str) -> bool:
    a, b = called.rpartition("/")[2], named.rpartition("/")[2]
    return a == b or (a.rstrip(_VERSION) == b.rstrip(_VERSION) != "")


def _denied(target: Any, argv: Any, program: Any) -> bool:
    words = target[_WORDS]
    named = target[_PROGRAM]
    same = program == named if named is not None else _same_name(argv[0], words[0])
    if named is None and type(program) is str and not same:
        same = _same_name(program, words[0])
    return same and list(argv[1 : len(words)]) == words[1:]


def _is_from(target: Any, directory: str, parent: Any) -> bool:
    if type(parent) is not str:
        return False
    return parent == target[_PROGRAM] or (is_plain(parent) and is_below(parent, directory))
