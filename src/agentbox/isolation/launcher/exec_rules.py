# SPDX-License-Identifier: MIT
"""Which programs a box may start: the pure part of the exec judge.

A rule is a dict, since it travels in the launch plan: `exe` is the real path of the program, `name` the word that
names it, `args` the words that must follow, `libexec` directories whose programs only this program may start (git and
/usr/lib/git-core), `deny` whether it forbids. The meaning is that of policy/answers/programs.py.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Rule = dict[str, Any]
    from collections.abc import Sequence

_DEFAULTS: Rule = {"name": "", "args": [], "libexec": [], "deny": False}
_VERSION = b"0123456789.-"


class ExecRules:
    """Decides on programs by what they really are: the file that runs, and the words it got."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        whole = [{**_DEFAULTS, **rule} for rule in rules]
        self._denials = [rule for rule in whole if rule["deny"]]
        self._grants = [rule for rule in whole if not rule["deny"]]
        self._granted = {rule["exe"] for rule in self._grants}
        self._with_libexec = [rule for rule in self._grants if rule["libexec"]]

    def may_start(self, path: str, parent: str) -> bool:
        """Whether any rule could allow the file at `path`; a cheap first look that allows nothing by itself."""
        return path in self._granted or any(_comes_with(rule, path, parent) for rule in self._with_libexec)

    def decide(
        self, exe: str, argv: Sequence[bytes], *, script: str = "", named: bytes = b"", parent: str = ""
    ) -> Rule | None:
        """The rule that allows a program, or None.

        `exe` is the file that runs. `script` is the file whose first line names `exe` as its interpreter, if that is
        how it came to run: then the script is what is judged, and its words are those behind its own name, which is
        `named` where it was executed by a link. `parent` is the file of the program that starts it.
        """
        target, words, called = exe, list(argv[1:]), argv[0] if argv else b""
        if script:
            own = (_base(script), named.rpartition(b"/")[2])
            names = [index for index, word in enumerate(words) if word.rpartition(b"/")[2] in own]
            target, called = script, own[0]
            words = words[names[0] + 1 :] if names else words
        for rule in self._denials:
            if target == rule["exe"] and _begins(words, rule):
                return None
        for rule in self._grants:
            if target == rule["exe"]:
                # What an allowed program starts of itself comes with it; else the name must belong to the rule, since
                # on some hosts many programs are one file.
                name = rule["name"] or target
                is_called = _same_name(called, name) or bool(script and named and _same_name(named, name))
                if parent == target or (is_called and _begins(words, rule)):
                    return rule
            elif rule["libexec"] and _comes_with(rule, target, parent):
                return rule
        return None


def _encoded(words: Sequence[str]) -> list[bytes]:
    return [word.encode(errors="surrogateescape") for word in words]


def _begins(words: Sequence[bytes], rule: Rule) -> bool:
    if not rule["args"]:
        return True
    wanted = _encoded(rule["args"])
    return list(words[: len(wanted)]) == wanted


def _base(path: str) -> bytes:
    return path.rpartition("/")[2].encode(errors="surrogateescape")


def _same_name(called: bytes, named: str) -> bool:
    a, b = called.rpartition(b"/")[2], _base(named)
    return a == b or (a.rstrip(_VERSION) == b.rstrip(_VERSION) != b"")


def _comes_with(rule: Rule, path: str, parent: str) -> bool:
    directories = [directory.rstrip("/") + "/" for directory in rule["libexec"] if directory.strip("/")]
    if not any(path.startswith(directory) for directory in directories):
        return False
    return parent == rule["exe"] or any(parent.startswith(directory) for directory in directories)
