# SPDX-License-Identifier: MIT
"""`write: PATH [max=SIZE]`: the files that may be written, and so also read; with a cap on their size together."""

from __future__ import annotations

from agentbox.policy.rule import Rule
from agentbox.policy.rules.path_values import path_target
from agentbox.policy.rules.sizes import refuse_cap, split_cap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.policy.rule import Surroundings, Value


def read_rule(value: Value, surroundings: Surroundings, deny: bool) -> Rule:
    """The rule of one value. Raises PolicySyntaxError."""
    if deny:
        refuse_cap(value, "deny: write")
    path, max_bytes = split_cap(value)
    target = path_target(path, surroundings, max_bytes)
    canonical = target.text if max_bytes is None else f"{target.text} max={max_bytes}"
    return Rule("write", value.text, canonical, target, deny, value.place)
