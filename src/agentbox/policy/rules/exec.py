# SPDX-License-Identifier: MIT
"""`exec: WORD...`: the programs that may be started, and the words with which their arguments must begin.

The first word is a file: a bare name is the one found on the trusted PATH, never another file of that name. The words
after it must be the first arguments exactly, so `git status` does not allow `git -c alias.status=!id status`.
"""

from __future__ import annotations

from agentbox.policy.rule import ExecTarget, Rule
from agentbox.policy.words import UnbalancedError, split_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.policy.rule import Surroundings, Value


def read_rule(value: Value, surroundings: Surroundings, deny: bool) -> Rule:
    """The rule of one value. Raises PolicySyntaxError."""
    try:
        words = split_words(value.text)
    except UnbalancedError as error:
        value.fail(
            "unbalanced_quote",
            str(error),
            "a comma ends a rule, within quotes too: put such a command into a script and allow that",
            error.offset,
        )
    if not words or not words[0]:
        value.fail("bad_exec", "the rule names no program", "write the name or the path of a program")
    if any(sign in words[0] for sign in "*?"):
        value.fail("bad_exec", "exec rules have no wildcards", "write one rule for each program")
    target = ExecTarget(words, *_program(value, words[0], surroundings, deny))
    return Rule("exec", value.text, value.text, target, deny, value.place)


def _program(value: Value, word: str, surroundings: Surroundings, deny: bool) -> tuple[str | None, tuple[str, ...]]:
    """The file that a first word means and the directories that come with it."""
    name = word
    if word.startswith("~/"):
        if surroundings.home is None:
            value.fail("bad_path", "'~' has no meaning here: there is no home directory", "write an absolute path")
        name = surroundings.home + word[1:]
    elif "/" in word and not word.startswith("/"):
        name = f"{surroundings.root.rstrip('/')}/{word}"
    program = surroundings.find_program(name)
    if program is None and "/" in word and not deny:
        # A program that the run may still make: the file at that very place. A denial is for all of that name.
        return surroundings.resolve(name), ()
    return program, surroundings.libexec_of(program) if program else ()
