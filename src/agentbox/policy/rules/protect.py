# SPDX-License-Identifier: MIT
"""`protect: on`: files that run later, outside the box, cannot be written; `protected.py` lists them."""

from __future__ import annotations

from agentbox.policy.rule import Rule, SwitchTarget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.policy.rule import Surroundings, Value


def read_rule(value: Value, _surroundings: Surroundings, deny: bool) -> Rule:
    """The rule of one value. Raises PolicySyntaxError."""
    if value.text not in ("on", "off"):
        value.fail("bad_protect", f"protect is on or off, not {value.text!r}", "write `protect: on`")
    return Rule("protect", value.text, value.text, SwitchTarget(value.text == "on"), deny, value.place)
