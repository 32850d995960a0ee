# SPDX-License-Identifier: MIT
"""The policy of a sandbox: `net:` rules, which the gateway holds for as long as its box lives."""

from __future__ import annotations

from agentbox.egress.events import OnEvent
from agentbox.egress.rules import EgressRules
from agentbox.engine.way_out import Egress, WayOut
from agentbox.errors import PolicyError
from agentbox.isolation.durable import WORKSPACE, DurableBackend, DurableBox, DurableRequest
from agentbox.policy.parser import parse
from agentbox.records import replace

# What a durable box can hold of a policy; the rest would be weaker than it reads.
_HELD = ("net",)


def read_policy(text: str) -> SandboxPolicy:
    """Parse the text. Raises PolicySyntaxError, and PolicyError for rules that nothing holds in a durable box."""
    policy = parse(text, root=WORKSPACE)
    if policy.limits:
        raise PolicyError(
            "`limits:` of a sandbox are its arguments memory, cpus, pids_limit and disk",
            hint="take the line out of the policy",
        )
    for rule in policy.rules:
        if rule.verb not in _HELD:
            raise PolicyError(
                f"`{rule.text}` ({rule.place.path}:{rule.place.line}) cannot be held in a durable sandbox: it shows "
                "its whole workspace to every program",
                hint="a sandbox takes `net:` rules; use `agentbox run` or /v1/run for the others",
            )
    return SandboxPolicy(EgressRules.of(policy), policy.policy_sha256)


class SandboxPolicy:
    """The rules, and the way out of the box that lives now. `on_event` gets what the gateway decides."""

    def __init__(self, rules: EgressRules, policy_sha256: str) -> None:
        self.rules = rules
        self.policy_sha256 = policy_sha256
        self.on_event: OnEvent = lambda _: None
        self._way_out: WayOut | None = None

    async def attach(self, request: DurableRequest, backend: DurableBackend, egress: Egress) -> DurableRequest:
        """The request with a network that leads to the gateway. Raises IsolationError."""
        held = await backend.hold_network()
        self._way_out = await egress.open(self.rules, lambda event: self.on_event(event), held=held)
        return replace(request, network=self._way_out.network)

    async def serve(self, box: DurableBox) -> None:
        """Begin to serve the box."""
        assert self._way_out is not None
        await self._way_out.serve(box.unix_listeners)

    async def close(self) -> None:
        """End every connection."""
        way_out, self._way_out = self._way_out, None
        if way_out is not None:
            await way_out.close()
