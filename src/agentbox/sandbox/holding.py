# SPDX-License-Identifier: MIT
"""A sandbox under a policy while it lives: its box is built as the policy says, served by the gateway, and seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentbox.egress.rules import EgressRules
from agentbox.engine.run_trace import NO_POLICY_SHA256
from agentbox.isolation.durable_registry import judging
from agentbox.records import replace
from agentbox.sandbox.confining import Made, SandboxPolicy, give_back

if TYPE_CHECKING:
    from agentbox.egress.events import EgressEvent
    from agentbox.engine.way_out import Egress, WayOut
    from agentbox.isolation.durable import DurableBackend, DurableBox, DurableRequest
    from agentbox.sandbox.recording import Recording


class Holding:
    """Without a policy it holds nothing, and everything here does nothing. `recording` gives the one of now."""

    def __init__(self, policy: SandboxPolicy | None, recording: Callable[[], Recording]) -> None:
        self._policy = policy
        self._recording = recording
        self._rules = EgressRules.of(policy.policy) if policy is not None and policy.has_way_out else None
        self._way_out: WayOut | None = None
        self._workspace = ""
        self._made: Made = ()
        self.warnings: tuple[str, ...] = ()

    @property
    def present(self) -> bool:
        """Whether there is a policy."""
        return self._policy is not None

    @property
    def policy(self) -> Any:
        """The policy as it was read, None without one."""
        return self._policy.policy if self._policy is not None else None

    @property
    def policy_sha256(self) -> str:
        """The hash of what it says."""
        return self._policy.policy.policy_sha256 if self._policy is not None else NO_POLICY_SHA256

    async def apply(
        self, request: DurableRequest, backend: DurableBackend, egress: Callable[[], Egress]
    ) -> DurableRequest:
        """The request as the policy narrows it. Raises PolicyError, WorkspaceError, IsolationError."""
        policy = self._policy
        if policy is None:
            return request
        policy.check(backend.name, judges=backend.judges, able=judging())
        limits = request.confinement.limits
        confined = await asyncio.to_thread(policy.confine, request.workspace, limits)
        self._workspace, self._made, self.warnings = request.workspace, confined.made, confined.warnings
        request = replace(request, view=confined.view, programs=confined.programs, on_report=self._seen)
        if self._rules is None:
            return request
        held = await backend.hold_network()
        self._way_out = await egress().open(self._rules, self._gated, held=held)
        return replace(request, network=self._way_out.network)

    async def serve(self, box: DurableBox, backend: DurableBackend) -> None:
        """Begin to serve a box that was built. Raises PolicyError where it does not hold what the policy wants."""
        if self._policy is not None:
            self._policy.check_held(box.enforcement, backend.name)
        if self._way_out is not None:
            await self._way_out.serve(box.unix_listeners)

    def passed(self, environment: Mapping[str, str | None]) -> dict[str, str | None]:
        """The variables that may reach a command; the others are recorded."""
        if self._policy is None:
            return dict(environment)
        found = {}
        for name, value in environment.items():
            denial = self._policy.denial_of_variable(name) if value is not None else None
            if denial is None:
                found[name] = value
            else:
                self._recording().withheld(name, denial)
        return found

    async def close(self) -> None:
        """End every connection, and take back what was made for the policy. The box is gone. May be called twice."""
        way_out, self._way_out = self._way_out, None
        if way_out is not None:
            await way_out.close()
        made, self._made = self._made, ()
        if made:
            await asyncio.to_thread(give_back, self._workspace, made)

    def _gated(self, event: EgressEvent) -> None:
        self._recording().gated(event)

    def _seen(self, report: Mapping[str, Any]) -> None:
        self._recording().seen(report)
