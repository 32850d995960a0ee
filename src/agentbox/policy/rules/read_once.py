# SPDX-License-Identifier: MIT
"""`read-once: PATH`: each file there may be read one time, under whatever name, and also where another rule reads it.

Which file it is follows from its identity (device and inode), which the enforcing side gives with the question.
"""

from __future__ import annotations

from agentbox.policy.rule import Rule
from agentbox.policy.rules.path_values import path_target
from agentbox.policy.rules.sizes import refuse_cap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.policy.rule import Surroundings, Value


def read_rule(value: Value, surroundings: Surroundings, deny: bool) -> Rule:
    """The rule of one value. Raises PolicySyntaxError."""
    refuse_cap(value, "read-once")
    target = path_target(value, surroundings)
    return Rule("read-once", value.text, target.text, target, deny, value.place)
