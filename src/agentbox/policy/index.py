# SPDX-License-Identifier: MIT
"""The rules of a policy, arranged so that a question needs a few look-ups and no parsing.

A path is looked up as itself and as each of its parents, so the cost follows its depth and not the number of rules;
the verdict of a rule that does not count is made once, here.
"""

from __future__ import annotations

from agentbox.policy.decision import Decision, by_rule
from agentbox.policy.paths import covers, is_below
from agentbox.policy.record import TYPE_CHECKING, MappingProxyType, dataclass
from agentbox.policy.rule import EnvTarget, ExecTarget, HostTarget, PathTarget, SwitchTarget, UnixTarget

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentbox.policy.rule import Rule

# Beside the policy: what later runs rely on.
OWN_NAMES = (".agentbox", "trace.jsonl")
_OWN = Decision(False, None, "kernel", "it is the policy or where traces lie, which no run may change")


@dataclass(frozen=True)
class PathTable:
    """Verdicts by path: `exact` covers what lies below each key, `patterns` are tried one after the other. `longest`
    and `shortest` are lengths of keys; 0 and 1 when there are none."""

    exact: Mapping[str, Decision]
    patterns: tuple[tuple[PathTarget, Decision], ...]
    longest: int
    shortest: int

    @classmethod
    def of(cls, rules: Iterable[Rule]) -> PathTable:
        """The table of some path rules; of two rules for one path the first in the file speaks."""
        exact: dict[str, Decision] = {}
        patterns: list[tuple[PathTarget, Decision]] = []
        for rule in rules:
            if not isinstance(rule.target, PathTarget):
                continue
            decision = by_rule(rule)
            if rule.target.pattern:
                patterns.append((rule.target, decision))
                continue
            exact.setdefault(rule.target.path, decision)
            if rule.deny and rule.target.alias:
                exact.setdefault(rule.target.alias, decision)
        return cls._made(exact, tuple(patterns))

    @classmethod
    def of_paths(cls, paths: Iterable[str], decision: Decision) -> PathTable:
        """The table of some paths with one verdict."""
        return cls._made(dict.fromkeys(paths, decision), ())

    @classmethod
    def _made(cls, exact: dict[str, Decision], patterns: tuple[tuple[PathTarget, Decision], ...]) -> PathTable:
        lengths = [len(path) for path in exact]
        # The root is looked up apart, after the walk has come to the empty path.
        shortest = min((length for length in lengths if length > 1), default=1)
        return cls(MappingProxyType(exact), patterns, max(lengths, default=0), shortest)

    def find(self, path: str) -> Decision | None:
        """The verdict for a plain path, of the nearest directory first; None when no rule covers it."""
        longest = self.longest
        if longest:
            get = self.exact.get
            at = path
            if len(at) > longest:
                # No key is longer, so the walk begins at the first parent that can be one.
                cut = longest if at[longest] == "/" else at.rfind("/", 0, longest)
                at = at[:cut]
            shortest = self.shortest
            while len(at) >= shortest:
                found = get(at)
                if found is not None:
                    return found
                at = at[: at.rfind("/")]
            found = get("/")
            if found is not None:
                return found
        for target, decision in self.patterns:
            if covers(target, path):
                return decision
        return None

    def find_within(self, directory: str) -> Decision | None:
        """A verdict for something below a plain path, as far as the rule names where: renaming the directory would
        take it out of the rule's reach."""
        for path, decision in self.exact.items():
            if is_below(path, directory):
                return decision
        for target, decision in self.patterns:
            if is_below(target.path, directory):
                return decision
        return None


@dataclass(frozen=True)
class HostTable:
    """Verdicts for hosts, those of an exact name by name."""

    names: Mapping[str, tuple[tuple[HostTarget, Decision], ...]]
    others: tuple[tuple[HostTarget, Decision], ...]

    @classmethod
    def of(cls, rules: Iterable[Rule]) -> HostTable:
        """The table of some net rules."""
        names: dict[str, tuple[tuple[HostTarget, Decision], ...]] = {}
        others: list[tuple[HostTarget, Decision]] = []
        for rule in rules:
            target = rule.target
            if not isinstance(target, HostTarget):
                continue
            if target.name:
                names[target.name] = (*names.get(target.name, ()), (target, by_rule(rule)))
            else:
                others.append((target, by_rule(rule)))
        return cls(MappingProxyType(names), tuple(others))


@dataclass(frozen=True)
class Index:
    """Everything that evaluation looks at."""

    read_denials: PathTable
    write_denials: PathTable
    reads: PathTable
    writes: PathTable
    once: tuple[Rule, ...]
    capped: tuple[Rule, ...]
    hosts: HostTable
    host_denials: HostTable
    sockets: tuple[tuple[UnixTarget, Decision], ...]
    socket_denials: tuple[tuple[UnixTarget, Decision], ...]
    programs: Mapping[str, tuple[Rule, ...]]
    libexec: tuple[tuple[str, Rule], ...]
    program_denials: tuple[tuple[ExecTarget, Decision], ...]
    variables: tuple[tuple[EnvTarget, Decision], ...]
    variable_denials: tuple[tuple[EnvTarget, Decision], ...]
    denies_files: bool
    own: PathTable
    protection: Rule | None

    @classmethod
    def of(cls, rules: tuple[Rule, ...], root: str, sources: tuple[str, ...]) -> Index:
        """The index of a policy's rules."""
        grants = [rule for rule in rules if not rule.deny]
        denials = [rule for rule in rules if rule.deny]
        programs: dict[str, tuple[Rule, ...]] = {}
        libexec: list[tuple[str, Rule]] = []
        for rule in grants:
            if isinstance(rule.target, ExecTarget) and rule.target.program is not None:
                programs[rule.target.program] = (*programs.get(rule.target.program, ()), rule)
                libexec += [(directory, rule) for directory in rule.target.libexec]
        return cls(
            # What may not be read may not be written either, as writing implies reading.
            read_denials=PathTable.of(rule for rule in denials if rule.verb == "read"),
            write_denials=PathTable.of(rule for rule in denials if rule.verb in ("read", "write")),
            reads=PathTable.of(rule for rule in grants if rule.verb in ("read", "write", "read-once")),
            writes=PathTable.of(rule for rule in grants if rule.verb == "write"),
            once=tuple(rule for rule in grants if rule.verb == "read-once"),
            capped=tuple(r for r in grants if isinstance(r.target, PathTarget) and r.target.max_bytes is not None),
            hosts=HostTable.of(grants),
            host_denials=HostTable.of(denials),
            sockets=tuple((r.target, by_rule(r)) for r in grants if isinstance(r.target, UnixTarget)),
            socket_denials=tuple((r.target, by_rule(r)) for r in denials if isinstance(r.target, UnixTarget)),
            programs=MappingProxyType(programs),
            libexec=tuple(libexec),
            program_denials=tuple((r.target, by_rule(r)) for r in denials if isinstance(r.target, ExecTarget)),
            variables=tuple((r.target, by_rule(r)) for r in grants if isinstance(r.target, EnvTarget)),
            variable_denials=tuple((r.target, by_rule(r)) for r in denials if isinstance(r.target, EnvTarget)),
            denies_files=any(rule.verb == "read" for rule in denials),
            own=PathTable.of_paths((*sources, *(f"{root.rstrip('/')}/{name}" for name in OWN_NAMES)), _OWN),
            protection=next((r for r in rules if isinstance(r.target, SwitchTarget) and r.target.on), None),
        )

    @property
    def protects(self) -> bool:
        """Whether `protect: on` stands anywhere."""
        return self.protection is not None

    def counts_reading(self, path: str) -> Rule | None:
        """The `read-once:` rule that covers a path."""
        return next((r for r in self.once if isinstance(r.target, PathTarget) and covers(r.target, path)), None)
