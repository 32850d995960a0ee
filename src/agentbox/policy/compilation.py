# SPDX-License-Identifier: MIT
"""A policy in, a Confinement out: what a box is built from. Pure; the file system is looked at through a FileView.

The kernel layer holds paths that are there when the box is built. What a path-by-path layer cannot say exactly (a
wildcard for files yet to come, a denial of what does not exist, counts) is left to the guard and named as such.
"""

from __future__ import annotations

from agentbox.models import Confinement, FileDenial, FileGrant, Layer, ProgramRule, TextRule
from agentbox.policy.document import policies_of
from agentbox.policy.paths import covers, is_below, upwards
from agentbox.policy.protected import LAST_PARTS, why_protected
from agentbox.policy.rule import ExecTarget, PathTarget
from agentbox.records import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Protocol

    from agentbox.models import Limits
    from agentbox.policy.document import AnyPolicy, Policy
    from agentbox.policy.rule import Rule
else:
    Protocol = object

OWN_RULE = "the policy and the traces"


class FileView(Protocol):
    """The file system, as far as compiling a policy looks at it."""

    def exists(self, path: str) -> bool:
        """Whether something is at the path, a link counting as itself."""

    def below(self, directory: str, wanted: Callable[[str], bool], depth: int | None) -> tuple[str, ...] | None:
        """The paths below a directory that are wanted, none below another that is, at most `depth` names deep; no
        link is followed. None when there is more to look at than the view is ready to."""


def compile_policy(
    policy: AnyPolicy, limits: Limits, view: FileView, *, read_only: tuple[str, ...] = ()
) -> Confinement:
    """What a box may touch under a policy. `limits` are those of request and ceiling; the policy's may lower them."""
    single = policies_of(policy)
    parts = [_Files.of(one, view) for one in single]
    grants = parts[0].grants if parts else ()
    for part in parts[1:]:
        grants = _both(grants, part.grants)
    return Confinement(
        limits=tightened(limits, policy),
        read_only=read_only,
        files=grants,
        file_denials=tuple(dict.fromkeys(denial for part in parts for denial in part.denials)),
        programs=tuple(tuple(_programs(one)) for one in single),
        variables=tuple(tuple(_texts(one, "env")) for one in single),
        hosts=tuple(tuple(_texts(one, "net")) for one in single),
        interpreter_only=tuple(dict.fromkeys(text for part in parts for text in part.interpreter_only)),
        policy_sha256=policy.policy_sha256,
    )


def tightened(limits: Limits, policy: AnyPolicy) -> Limits:
    """The limits, each lowered to the policy's where that is smaller."""
    asked = policy.limits
    return replace(
        limits,
        timeout_seconds=min(limits.timeout_seconds, asked.get("timeout_seconds", limits.timeout_seconds)),
        memory_mb=min(limits.memory_mb, int(asked.get("memory_mb", limits.memory_mb))),
        cpus=min(limits.cpus, asked.get("cpus", limits.cpus)),
        pids=min(limits.pids, int(asked.get("pids", limits.pids))),
        disk_mb=min(limits.disk_mb, int(asked.get("disk_mb", limits.disk_mb))),
        max_output_bytes=min(limits.max_output_bytes, int(asked.get("max_output_bytes", limits.max_output_bytes))),
    )


class _Files:
    """The file part of one policy, while it is compiled."""

    def __init__(self, policy: Policy, view: FileView) -> None:
        self._policy = policy
        self._view = view
        self._grants: dict[str, FileGrant] = {}
        self._denials: dict[tuple[str, bool], FileDenial] = {}
        self.interpreter_only: list[str] = []

    @classmethod
    def of(cls, policy: Policy, view: FileView) -> _Files:
        """The compiled files of a policy."""
        files = cls(policy, view)
        for rule in policy.rules:
            if isinstance(rule.target, PathTarget) and not rule.deny:
                files._grant(rule, rule.target)
        writable = tuple(grant.path for grant in files.grants if grant.writable)
        for rule in policy.rules:
            if isinstance(rule.target, PathTarget) and rule.deny:
                files._deny(rule, rule.target, writable)
        files._widen()
        files._keep_own(writable)
        if policy.protects:
            files._protect(writable)
        return files

    @property
    def grants(self) -> tuple[FileGrant, ...]:
        """What is granted, sorted so that a directory comes before what lies in it."""
        return tuple(sorted(self._grants.values(), key=lambda grant: grant.path.split("/")))

    @property
    def denials(self) -> tuple[FileDenial, ...]:
        """What is taken out again."""
        return tuple(sorted(self._denials.values(), key=lambda denial: denial.path.split("/")))

    def _grant(self, rule: Rule, target: PathTarget) -> None:
        writable = rule.verb == "write"
        if rule.verb == "read-once" or target.max_bytes is not None:
            self.interpreter_only.append(rule.text)
        if not target.pattern:
            self._add_grant(target.path, writable, Layer.KERNEL, rule)
            return
        found = None if writable else _matches(self._view, target)
        if found is None:
            self.interpreter_only.append(rule.text)
            self._add_grant(target.path, writable, Layer.INTERPRETER, rule)
            return
        for path in found:
            self._add_grant(path, writable, Layer.KERNEL, rule)

    def _add_grant(self, path: str, writable: bool, held_by: Layer, rule: Rule) -> None:
        before = self._grants.get(path)
        if before is not None and (before.writable or not writable):
            # A narrower rule for the same path must not hide that the wider one needs no guard.
            if held_by is Layer.KERNEL and before.writable == writable:
                self._grants[path] = replace(before, held_by=held_by)
            return
        self._grants[path] = FileGrant(path, writable, self._view.exists(path), held_by, rule.text)

    def _widen(self) -> None:
        """What is there, may be read by one rule, and matches a pattern that may be written, may be written."""
        patterns = [
            rule.target
            for rule in self._policy.rules
            if rule.verb == "write" and not rule.deny and isinstance(rule.target, PathTarget) and rule.target.pattern
        ]
        for path, grant in self._grants.items() if patterns else ():
            if not grant.writable and any(covers(pattern, path) for pattern in patterns):
                self._grants[path] = replace(grant, writable=True)

    def _deny(self, rule: Rule, target: PathTarget, writable: tuple[str, ...]) -> None:
        hidden = rule.verb == "read"
        can_appear = any(is_below(target.path, path) or is_below(path, target.path) for path in writable)
        if not target.pattern:
            present = self._add_denial(target.path, hidden, rule.text)
            if target.alias:
                self._add_denial(target.alias, hidden, rule.text)
            if not present and can_appear:
                self.interpreter_only.append(rule.text)
            return
        found = _matches(self._view, target)
        for path in found or ():
            self._add_denial(path, hidden, rule.text)
        if found is None or can_appear:
            self.interpreter_only.append(rule.text)

    def _add_denial(self, path: str, hidden: bool, rule: str) -> bool:
        denial = FileDenial(path, hidden, self._view.exists(path), rule)
        self._denials.setdefault((path, hidden), denial)
        return denial.present

    def _keep_own(self, writable: tuple[str, ...]) -> None:
        """The policy and the traces stay as they are below every write grant."""
        for path in sorted(self._policy.index.own.exact):
            if any(is_below(path, grant) for grant in writable):
                self._add_denial(path, False, OWN_RULE)

    def _protect(self, writable: tuple[str, ...]) -> None:
        rule = "protect: on"
        self.interpreter_only.append(rule)
        for directory in _outermost(writable):
            for path in self._view.below(directory, _is_protected_for_the_kernel, None) or ():
                self._add_denial(path, False, rule)


def _matches(view: FileView, target: PathTarget) -> tuple[str, ...] | None:
    """The paths that are there for a target with a pattern."""
    depth = None if "**" in target.pattern_text else len(target.pattern)
    return view.below(target.path, lambda path: covers(target, path), depth)


def _is_protected_for_the_kernel(path: str) -> bool:
    """Whether an existing path may become read-only. A directory that is protected only by its own name, as `.git` is,
    is written to by ordinary work; that it cannot be made or renamed is left to the guard."""
    return path.rpartition("/")[2].lower() not in LAST_PARTS and bool(why_protected(path))


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """The paths that lie below none of the others."""
    kept: list[str] = []
    for path in sorted(set(paths), key=lambda path: path.split("/")):
        if not any(is_below(path, other) for other in kept):
            kept.append(path)
    return tuple(kept)


def _both(first: tuple[FileGrant, ...], second: tuple[FileGrant, ...]) -> tuple[FileGrant, ...]:
    """What both grant: at each path of either, what the nearest grants above it in both have in common."""
    tables = [{grant.path: grant for grant in grants} for grants in (first, second)]
    found: dict[str, FileGrant] = {}
    for grant in (*first, *second):
        one, other = (_at(table, grant.path) for table in tables)
        if one is None or other is None or grant.path in found:
            continue
        exact = one.held_by is Layer.KERNEL and other.held_by is Layer.KERNEL
        found[grant.path] = FileGrant(
            path=grant.path,
            writable=one.writable and other.writable,
            present=grant.present,
            held_by=Layer.KERNEL if exact else Layer.INTERPRETER,
            rule=grant.rule,
        )
    return tuple(sorted(found.values(), key=lambda grant: grant.path.split("/")))


def _at(table: dict[str, FileGrant], path: str) -> FileGrant | None:
    """What a set of grants gives at a path: writing when any directory above grants it."""
    above = [table[up] for up in upwards(path) if up in table]
    return next((grant for grant in above if grant.writable), above[0] if above else None)


def _programs(policy: Policy) -> Iterable[ProgramRule]:
    for rule in policy.rules:
        target = rule.target
        if isinstance(target, ExecTarget):
            yield ProgramRule(rule.deny, target.program, target.words, target.libexec, rule.text)


def _texts(policy: Policy, verb: str) -> Iterable[TextRule]:
    return (TextRule(rule.deny, rule.canonical, rule.text) for rule in policy.rules if rule.verb == verb)
