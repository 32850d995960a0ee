# SPDX-License-Identifier: MIT
"""`env: NAME`: the environment variables that are passed on; `*`, `?` and `[AB]` are wildcards, case counts."""

from __future__ import annotations

from agentbox.policy.glob import tokens
from agentbox.policy.rule import EnvTarget, Rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.policy.rule import Surroundings, Value

MAX_NAME = 256


def read_rule(value: Value, _surroundings: Surroundings, deny: bool) -> Rule:
    """The rule of one value. Raises PolicySyntaxError."""
    text = value.text
    for sign, advice in (
        ("=", "a policy passes variables on, it does not set them; write the name alone"),
        (" ", "separate names with commas"),
        ("\t", "separate names with commas"),
        ("$", "write the name without $"),
    ):
        if sign in text:
            value.fail("bad_env", f"{text!r} is no name of a variable", advice, text.index(sign))
    if len(text) > MAX_NAME:
        value.fail("bad_env", f"a name of more than {MAX_NAME} characters", "shorten it, with * for example")
    return Rule("env", text, text, EnvTarget(tokens(text, classes=True), text), deny, value.place)
