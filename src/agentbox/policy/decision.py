# SPDX-License-Identifier: MIT
"""The answer to a question, and the state of the rules that count."""

from __future__ import annotations

from agentbox.policy.record import TYPE_CHECKING, MappingProxyType, dataclass
from agentbox.policy.rule import HostTarget, PathTarget, UnixTarget

# Files and connections that one policy keeps count of, at most: the state must not grow with what a guest does.
MAX_COUNTED_FILES = 100_000

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbox.policy.rule import Rule

# A rule that counts, within one of the policies that are asked together.
CountKey = tuple[int, str]


@dataclass(frozen=True)
class Counters:
    """What was counted so far. Immutable: a decision returns the next state and the asker keeps it.

    `once` holds the identities of the files below `read-once:` as far as the asker knows them, so that a hard link
    elsewhere counts as the same file; `spent` those that were read; `sizes` bytes by file below each capped grant;
    `times` when connections were made under each rate.
    """

    once: frozenset[str] = frozenset()
    spent: frozenset[str] = frozenset()
    sizes: Mapping[CountKey, Mapping[str, int]] = MappingProxyType({})
    times: Mapping[CountKey, tuple[float, ...]] = MappingProxyType({})


@dataclass(frozen=True)
class Decision:
    """A verdict and what it rests on.

    `rule` is the deciding one, None when no rule speaks of it. `layer_hint` is the strongest layer that can hold it
    (a name of `models.Layer`). `counting` are the rules that count and allow it for now; without counters they have
    counted nothing. `counters` is the next state.
    """

    allowed: bool
    rule: Rule | None
    layer_hint: str
    reason: str
    counting: tuple[Rule, ...] = ()
    counters: Counters | None = None


def layer_of(rule: Rule) -> str:
    """The strongest layer that can hold a rule."""
    target = rule.target
    if rule.verb == "read-once":
        return "interpreter"
    if isinstance(target, PathTarget):
        return "interpreter" if target.pattern or target.max_bytes is not None else "kernel"
    if isinstance(target, (HostTarget, UnixTarget)):
        return "gateway"
    return "kernel" if rule.verb == "exec" else "supervisor"


def by_rule(rule: Rule) -> Decision:
    """The verdict that a rule gives: a denial or a grant."""
    place = rule.place
    where = f"{place.path}:{place.line}"
    verdict = "denies it" if rule.deny else "allows it"
    return Decision(not rule.deny, rule, layer_of(rule), f"`{rule.text}` ({where}) {verdict}")
