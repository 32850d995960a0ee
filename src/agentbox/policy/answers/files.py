# SPDX-License-Identifier: MIT
"""May a file be read or written."""

from __future__ import annotations

from agentbox.policy.decision import MAX_COUNTED_FILES, Decision
from agentbox.policy.paths import covers, is_plain
from agentbox.policy.protected import why_protected
from agentbox.policy.record import MappingProxyType, replace
from agentbox.policy.rule import PathTarget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.policy.decision import Counters
    from agentbox.policy.index import Index
    from agentbox.policy.questions import Read, Write
    from agentbox.policy.rule import Rule

_NO_PATH = Decision(False, None, "interpreter", "the path is not absolute and resolved")
_NO_READ = Decision(False, None, "kernel", "no `read:` or `write:` rule covers it")
_NO_WRITE = Decision(False, None, "kernel", "no `write:` rule covers it")


def read(index: Index, question: Read, counters: Counters | None, _scope: int) -> Decision:
    """Whether a file may be read."""
    path = question.path
    if type(path) is not str or not is_plain(path):
        return _NO_PATH
    if index.denies_files:
        denied = index.read_denials.find(path)
        if denied is not None:
            return denied
    granted = index.reads.find(path)
    if granted is None:
        return _NO_READ
    if not index.once:
        return granted
    return _read_once(index, question, granted, counters)


def _read_once(index: Index, question: Read, granted: Decision, counters: Counters | None) -> Decision:
    """The verdict where some files may be read one time."""
    rule = index.counts_reading(question.path)
    identity = question.identity or question.path
    if counters is None:
        return granted if rule is None else replace(granted, counting=(rule,))
    if rule is None and identity not in counters.once:
        return granted
    rule = rule or index.once[0]
    if identity in counters.spent:
        return Decision(False, rule, "interpreter", f"`{rule.text}`: this file was read before")
    if len(counters.spent) >= MAX_COUNTED_FILES:
        return Decision(False, rule, "interpreter", f"`{rule.text}`: more files than can be counted")
    after = replace(counters, once=counters.once | {identity}, spent=counters.spent | {identity})
    return replace(granted, counting=(rule,), counters=after)


def write(index: Index, question: Write, counters: Counters | None, scope: int) -> Decision:
    """Whether a file may be written, made, removed or renamed."""
    path = question.path
    if type(path) is not str or not is_plain(path):
        return _NO_PATH
    denied = index.write_denials.find(path)
    if denied is not None:
        return denied
    own = index.own.find(path)
    if own is not None:
        return own
    if question.whole:
        within = index.write_denials.find_within(path) or index.own.find_within(path)
        if within is not None:
            return within
    granted = index.writes.find(path)
    if granted is None:
        return _NO_WRITE
    if index.protects:
        why = why_protected(path)
        if why:
            return Decision(False, index.protection, "interpreter", f"`protect: on`: {why}")
    if not index.capped:
        return granted
    return _capped(index, question, granted, counters, scope)


def _capped(index: Index, question: Write, granted: Decision, counters: Counters | None, scope: int) -> Decision:
    """The verdict where files together have a cap."""
    for rule in index.capped:
        if isinstance(rule.target, PathTarget) and covers(rule.target, question.path):
            granted = replace(granted, counting=(*granted.counting, rule))
    if counters is None or question.size_bytes is None:
        return granted
    for rule in granted.counting:
        counted = _counted(rule, question, question.size_bytes, counters, scope)
        if isinstance(counted, Decision):
            return counted
        counters = counted
    return replace(granted, counters=counters) if granted.counting else granted


def _counted(rule: Rule, question: Write, size_bytes: int, counters: Counters, scope: int) -> Counters | Decision:
    """The state with the file's new size, or a denial when the cap would be passed."""
    most = rule.target.max_bytes if isinstance(rule.target, PathTarget) else None
    key = (scope, rule.canonical)
    sizes = dict(counters.sizes.get(key, {}))
    identity = question.identity or question.path
    sizes[identity] = max(size_bytes, 0)
    if (
        most is not None
        and sum(sizes.values()) > most
        and sizes[identity] > counters.sizes.get(key, {}).get(identity, 0)
    ):
        return Decision(False, rule, "interpreter", f"`{rule.text}`: the files below it would pass {most} bytes")
    if len(sizes) > MAX_COUNTED_FILES:
        return Decision(False, rule, "interpreter", f"`{rule.text}`: more files than can be counted")
    if not sizes[identity]:
        del sizes[identity]
    return replace(counters, sizes=MappingProxyType({**counters.sizes, key: MappingProxyType(sizes)}))
