# SPDX-License-Identifier: MIT
"""`limits: NAME=NUMBER`: the most that a run may use. When a limit is given twice the smaller one holds."""

from __future__ import annotations

from agentbox.policy.patterns import Pattern
from agentbox.policy.rule import LimitTarget, Rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.policy.rule import Surroundings, Value

_SETTING = Pattern(r"([a-z_]+)=([0-9]{1,15})(\.[0-9]{1,3})?\Z")

# Name and whether a fraction has a meaning. The names are those of a request's limits.
NAMES: dict[str, bool] = {
    "timeout_seconds": True,
    "memory_mb": False,
    "cpus": True,
    "pids": False,
    "disk_mb": False,
    "max_output_bytes": False,
}


def read_rule(value: Value, _surroundings: Surroundings, deny: bool) -> Rule:
    """The rule of one value. Raises PolicySyntaxError."""
    text = value.text
    name, sign, number = text.partition("=")
    if name not in NAMES:
        value.fail("bad_limit", f"unknown limit {name!r}", f"the limits are {', '.join(NAMES)}")
    parsed = _SETTING.match(text)
    if not sign or parsed is None or (parsed.group(3) and not NAMES[name]):
        value.fail("bad_limit", f"{number!r} is no amount for {name}", f"for example {name}=2", len(name + sign))
    amount = float(parsed.group(2) + (parsed.group(3) or ""))
    if amount <= 0:
        value.fail("bad_limit", f"{name} must be more than 0", "leave it out for the default", len(name + sign))
    canonical = f"{name}={int(amount) if amount.is_integer() else amount}"
    return Rule("limits", text, canonical, LimitTarget(name, amount), deny, value.place)
