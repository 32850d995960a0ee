# SPDX-License-Identifier: MIT
"""`read: PATH`: the files that may be read. `deny: read PATH` also refuses writing, as writing implies reading."""

from __future__ import annotations

from agentbox.policy.rule import Rule
from agentbox.policy.rules.path_values import path_target
from agentbox.policy.rules.sizes import refuse_cap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.policy.rule import Surroundings, Value


def read_rule(value: Value, surroundings: Surroundings, deny: bool) -> Rule:
    """The rule of one value. Raises PolicySyntaxError."""
    refuse_cap(value, "read")
    target = path_target(value, surroundings)
    return Rule("read", value.text, target.text, target, deny, value.place)
