# SPDX-License-Identifier: MIT
"""Which programs a box may start: the pure part of the exec judge.

A rule is a dict, since it travels in the launch plan: `exe` is the real path inside the box, `args` the words that
must follow, `libexec` a directory whose programs come with it (git and /usr/lib/git-core), `once` a rule that is used
up by its first use and must fit the whole argv.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Rule = dict[str, Any]


class ExecRules:
    """Decides on programs by what they really are: the file that runs, and the words it got."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = [{"args": [], "libexec": "", "once": False, **rule} for rule in rules]

    def may_start(self, path: str) -> bool:
        """Whether any rule could allow the file at `path`; a cheap first look that allows nothing by itself."""
        return any(path == rule["exe"] or _below(path, rule["libexec"]) for rule in self._rules)

    def decide(self, exe: str, argv: Sequence[bytes], script: str = "") -> Rule | None:
        """The rule that allows a program, or None.

        `exe` is the file that runs. `script` is the file whose first line names `exe` as its interpreter, if that is
        how it came to run: then the script is what is judged, and its words are those behind its own name.
        """
        target = script or exe
        words = list(argv[1:])
        if script:
            names = [index for index, word in enumerate(words) if word.decode(errors="surrogateescape") == script]
            words = words[names[0] + 1 :] if names else words
        for rule in self._rules:
            wanted = [word.encode(errors="surrogateescape") for word in rule["args"]]
            if rule["once"]:
                if target == rule["exe"] and words == wanted:
                    self._rules.remove(rule)
                    return rule
            elif (target == rule["exe"] and words[: len(wanted)] == wanted) or _below(target, rule["libexec"]):
                return rule
        return None


def _below(path: str, directory: str) -> bool:
    return bool(directory) and path.startswith(directory.rstrip("/") + "/")
