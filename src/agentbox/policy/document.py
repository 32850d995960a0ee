# SPDX-License-Identifier: MIT
"""A policy after it was read: its rules, its hash, and its text in one spelling."""

from __future__ import annotations

from agentbox.policy.index import Index
from agentbox.policy.record import TYPE_CHECKING, dataclass, field
from agentbox.policy.rule import LimitTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Union

    from agentbox.policy.rule import Rule

    AnyPolicy = Union["Policy", "Conjunction"]  # noqa: UP007 - CPython 3.9

# The order of the old keys is part of the hash of every policy that was written before the others existed.
_HASHED_FIRST = ("read", "write", "net", "exec", "env")
_HASHED_NEXT = ("read-once", "limits", "protect")


@dataclass(frozen=True)
class Policy:
    """The rules of a policy file and its includes. Two policies are equal when they say the same.

    `root` and `home` are what relative paths and `~` stood for, `real_root` is the root without links. `sources` are
    the resolved files of the text: no grant makes them writable.
    """

    rules: tuple[Rule, ...]
    root: str = "/"
    home: str | None = None
    real_root: str = field(default="/", compare=False)
    sources: tuple[str, ...] = field(default=(), compare=False)
    index: Index = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", Index.of(self.rules, self.real_root, self.sources))

    @property
    def policy_sha256(self) -> str:
        """The hash of what the policy says; a policy of the old keys alone keeps the hash that it always had."""
        return _sha256(self._hashed_text().encode("utf-8", "surrogateescape"))

    @property
    def limits(self) -> Mapping[str, float]:
        """The limits that are given, each the smallest of its values."""
        found: dict[str, float] = {}
        for rule in self.rules:
            if isinstance(rule.target, LimitTarget):
                name, amount = rule.target.name, rule.target.amount
                found[name] = min(amount, found.get(name, amount))
        return found

    @property
    def protects(self) -> bool:
        """Whether `protect: on` stands anywhere in it."""
        return self.index.protects

    def _hashed_text(self) -> str:
        lines: list[str] = []
        for deny, verbs in ((False, _HASHED_FIRST), (False, _HASHED_NEXT), (True, _HASHED_FIRST)):
            for verb in verbs:
                prefix = f"deny: {verb} " if deny else f"{verb}: "
                values = sorted(rule.canonical for rule in self.rules if rule.verb == verb and rule.deny == deny)
                lines += [prefix + value for value in values]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Conjunction:
    """Several policies at once: what each of them allows is allowed. Each is asked; no text is computed."""

    policies: tuple[Policy, ...]

    @property
    def policy_sha256(self) -> str:
        """The hash over the hashes of the policies, in their order."""
        return _sha256("".join(f"{p.policy_sha256}\n" for p in self.policies).encode())

    @property
    def limits(self) -> Mapping[str, float]:
        """The smallest value of each limit in any of the policies."""
        found: dict[str, float] = {}
        for policy in self.policies:
            for name, amount in policy.limits.items():
                found[name] = min(amount, found.get(name, amount))
        return found

    @property
    def protects(self) -> bool:
        """Whether any of the policies protects."""
        return any(policy.protects for policy in self.policies)


if not TYPE_CHECKING:
    # `typing` is slow to import; a tuple is enough for what reads annotations and for isinstance.
    AnyPolicy = (Policy, Conjunction)


def policies_of(policy: AnyPolicy) -> tuple[Policy, ...]:
    """The single policies of a policy."""
    return policy.policies if isinstance(policy, Conjunction) else (policy,)


def intersect(policy: AnyPolicy, ceiling: AnyPolicy) -> Conjunction:
    """What both allow: the request's policy under the operator's, for example."""
    return Conjunction((*policies_of(policy), *policies_of(ceiling)))


def canonical_text(policy: Policy) -> str:
    """The policy in one spelling: one rule a line, includes written out. Reading it gives an equal policy."""
    return "".join(f"{rule.text}\n" for rule in policy.rules)


def _sha256(text: bytes) -> str:
    global _hash
    if _hash is None:
        _hash = _found_hash()
    digest: str = _hash(text).hexdigest()
    return digest


def _found_hash() -> Callable[[bytes], Any]:
    """The interpreter's own where it has one: `hashlib` would load OpenSSL for a few lines of text."""
    for name in ("_sha2", "_sha256", "hashlib"):
        try:
            found: Callable[[bytes], Any] = __import__(name).sha256
        except ImportError:
            continue
        return found
    raise ImportError("this interpreter has no SHA-256")


# To look for a module that is not there costs more than to hash.
_hash: Callable[[bytes], Any] | None = None
