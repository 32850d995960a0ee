# SPDX-License-Identifier: MIT
"""A policy and a question in, a decision out. Pure and total: whatever is asked, the answer is a verdict.

Denials win over grants; what no rule allows is denied. A rule that counts (`read-once:`, `max=`, `@10/min`) narrows
whatever else allows the same thing: with counters given it decides by them and the decision holds the next state,
without them the decision names the rule for a later layer to count.
"""

from __future__ import annotations

from agentbox.policy.answers import files, network, programs, variables
from agentbox.policy.decision import Decision
from agentbox.policy.document import Conjunction
from agentbox.policy.questions import Connect, Env, Exec, Read, Resolve, Unix, Write
from agentbox.policy.record import TYPE_CHECKING, MappingProxyType, replace

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from agentbox.policy.decision import Counters
    from agentbox.policy.document import AnyPolicy
    from agentbox.policy.index import Index
    from agentbox.policy.questions import Question

    Answer = Callable[[Index, Any, "Counters | None", int], Decision]

# Each takes the index of a policy, its question, the counters, and the policy's number within a conjunction.
ANSWERS: MappingProxyType[type, Answer] = MappingProxyType(
    {
        Read: files.read,
        Write: files.write,
        Resolve: network.resolve,
        Connect: network.connect,
        Unix: network.unix,
        Exec: programs.start,
        Env: variables.passed_on,
    }
)

_NO_QUESTION = Decision(False, None, "interpreter", "this is no question that a policy answers")


def decide(policy: AnyPolicy, question: Question, counters: Counters | None = None) -> Decision:
    """The verdict of a policy. Never raises; a denial leaves the counters as they were.

    In a conjunction every policy is asked: the first denial decides, else the grant of the first policy is named.
    """
    answer = ANSWERS.get(type(question))
    if answer is None:
        return _NO_QUESTION
    if isinstance(policy, Conjunction):
        return _decide_all(policy, answer, question, counters)
    decision = answer(policy.index, question, counters, 0)
    if counters is None or decision.counters is not None:
        return decision
    return replace(decision, counters=counters)


def _decide_all(policy: Conjunction, answer: Answer, question: Question, counters: Counters | None) -> Decision:
    first: Decision | None = None
    counting: tuple[Any, ...] = ()
    state = counters
    for scope, single in enumerate(policy.policies):
        decision = answer(single.index, question, state, scope)
        if not decision.allowed:
            return replace(decision, counters=counters)
        first = first or decision
        counting += decision.counting
        state = decision.counters or state
    if first is None:
        return _NO_QUESTION
    return replace(first, counting=counting, counters=state)
