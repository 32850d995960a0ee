# SPDX-License-Identifier: MIT
"""May an environment variable be passed on."""

from __future__ import annotations

from agentbox.policy.decision import Decision
from agentbox.policy.glob import matches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.policy.decision import Counters
    from agentbox.policy.index import Index
    from agentbox.policy.questions import Env

_NO_RULE = Decision(False, None, "supervisor", "no `env:` rule names it")


def passed_on(index: Index, question: Env, _counters: Counters | None, _scope: int) -> Decision:
    """Whether a variable is passed on."""
    if type(question.name) is not str or not question.name:
        return _NO_RULE
    for target, decision in (*index.variable_denials, *index.variables):
        if matches(target.pattern, question.name):
            return decision
    return _NO_RULE
