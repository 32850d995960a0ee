# SPDX-License-Identifier: MIT
"""May a program be started.

What counts is the file that will run. The name in argv[0] must belong to the rule too: on a host where many programs
are one file, `exec: echo` must not become a shell by another name.
"""

from __future__ import annotations

from agentbox.policy.decision import Decision, by_rule
from agentbox.policy.paths import is_below, is_plain
from agentbox.policy.rule import ExecTarget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.policy.decision import Counters
    from agentbox.policy.index import Index
    from agentbox.policy.questions import Exec
    from agentbox.policy.rule import Rule

_NO_ARGV = Decision(False, None, "kernel", "a program is started with a list of words, its name first")
_NO_PROGRAM = Decision(False, None, "kernel", "there is no such program on the trusted PATH or at that path")
_NO_RULE = Decision(False, None, "kernel", "no `exec:` rule allows this program with these arguments")
_VERSION = "0123456789.-"


def start(index: Index, question: Exec, _counters: Counters | None, _scope: int) -> Decision:
    """Whether a program may be started."""
    argv, program = question.argv, question.program
    if type(argv) is not tuple or not argv or not all(type(word) is str for word in argv) or not argv[0]:
        return _NO_ARGV
    for target, denial in index.program_denials:
        if _denied(target, argv, program):
            return denial
    if type(program) is not str or not is_plain(program):
        return _NO_PROGRAM
    for rule in index.programs.get(program, ()):
        if _allowed(rule, argv, program, question.parent):
            return by_rule(rule)
    for directory, rule in index.libexec:
        if is_below(program, directory) and _is_from(rule, directory, question.parent):
            return by_rule(rule)
    return _NO_RULE


def same_name(called: str, named: str) -> bool:
    """Whether two names of a program differ at most in a version at the end (`python`, `python3.11`)."""
    a, b = called.rpartition("/")[2], named.rpartition("/")[2]
    return a == b or (a.rstrip(_VERSION) == b.rstrip(_VERSION) != "")


def _allowed(rule: Rule, argv: tuple[str, ...], program: str, parent: str | None) -> bool:
    target = rule.target
    if not isinstance(target, ExecTarget):
        return False
    if parent == program:
        # What an allowed program starts of itself (git does so for each of its parts) comes with it.
        return True
    return same_name(argv[0], target.words[0]) and argv[1 : len(target.words)] == target.words[1:]


def _denied(target: ExecTarget, argv: tuple[str, ...], program: str | None) -> bool:
    """Denials are wide: the same file by any name, or, where the rule's program was not found, the same name."""
    words = target.words
    same = program == target.program if target.program is not None else same_name(argv[0], words[0])
    if target.program is None and type(program) is str and not same:
        same = same_name(program, words[0])
    return same and argv[1 : len(words)] == words[1:]


def _is_from(rule: Rule, directory: str, parent: str | None) -> bool:
    """Whether the starting program is the rule's, or one that came with it."""
    if type(parent) is not str or not isinstance(rule.target, ExecTarget):
        return False
    return parent == rule.target.program or (is_plain(parent) and is_below(parent, directory))
