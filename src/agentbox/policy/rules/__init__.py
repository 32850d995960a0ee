# SPDX-License-Identifier: MIT
"""One file for each kind of rule. To add one: a module with `VERB` and `read_rule`, a line in `RULES`, vectors in
`spec/policy/vectors`, a section in the grammar, and the question it answers in `evaluation.py`."""

from __future__ import annotations

from agentbox.policy.record import dataclass
from agentbox.policy.rules import env, limits, net, protect, read, read_once, write
from agentbox.policy.rules import exec as programs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbox.policy.rule import Rule, Surroundings, Value


@dataclass(frozen=True)
class RuleKind:
    """How a kind of rule is read. `original`: the key may also be written in any case and without the space.
    `deniable`: `deny: VERB VALUE` exists. `allowable`: `allow: VERB VALUE` exists."""

    read_rule: Callable[[Value, Surroundings, bool], Rule]
    original: bool = False
    deniable: bool = False
    allowable: bool = True


RULES: dict[str, RuleKind] = {
    "read": RuleKind(read.read_rule, original=True, deniable=True),
    "write": RuleKind(write.read_rule, original=True, deniable=True),
    "net": RuleKind(net.read_rule, original=True, deniable=True),
    "exec": RuleKind(programs.read_rule, original=True, deniable=True),
    "env": RuleKind(env.read_rule, original=True, deniable=True),
    "read-once": RuleKind(read_once.read_rule),
    "limits": RuleKind(limits.read_rule, allowable=False),
    "protect": RuleKind(protect.read_rule, allowable=False),
}
