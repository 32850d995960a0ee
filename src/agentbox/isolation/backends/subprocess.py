# SPDX-License-Identifier: MIT
"""Backends `subprocess` and `unrestricted`: no wall. Own session, scrubbed environment, limits of single processes,
and everything the program started is killed with it."""

from __future__ import annotations

import os

from agentbox.errors import InternalError
from agentbox.isolation.backend import LiveBox, Program, Watch, build_in_cgroup
from agentbox.isolation.facilities import Facilities
from agentbox.isolation.network import Network
from agentbox.isolation.plan import unisolated_plan
from agentbox.isolation.requirement import Requirement
from agentbox.models import Confinement, Enforcement, Layer


class SubprocessBackend:
    """Runs the program as the server's own user. For trying out, and only on request."""

    isolated = False
    needs_directory = True
    judges = False
    guards = True
    own_kernel = False

    def __init__(self, facilities: Facilities, name: str = "subprocess") -> None:
        self.name = name
        self._facilities = facilities

    def requirements(self) -> tuple[Requirement, ...]:
        """See Backend."""
        return ()

    async def interpreters(self) -> None:
        """See Backend: boxes show the host's."""

    def refuses(self, confinement: Confinement) -> str:
        """See Backend."""
        del confinement
        return f"backend {self.name} has no wall, so it cannot hold a policy"

    def claims(self) -> Enforcement:
        """See Backend."""
        held = self._facilities.held
        return Enforcement(
            memory=Layer.KERNEL if "memory" in held else Layer.SUPERVISOR,
            pids=Layer.KERNEL if "pids" in held else Layer.NONE,
            cpu=Layer.KERNEL if "cpu" in held else Layer.NONE,
        )

    async def hold_network(
        self, confinement: Confinement | None = None, watch: Watch | None = None, program: Program | None = None
    ) -> None:
        """See Backend: its boxes join any."""
        del confinement, watch, program

    async def close(self) -> None:
        """See Backend."""

    async def launch(
        self,
        confinement: Confinement,
        directory: str | None = None,
        watch: Watch | None = None,
        network: Network | None = None,
        program: Program | None = None,
    ) -> LiveBox:
        """See Backend."""
        del program
        del watch
        if network is not None:
            raise InternalError(f"backend {self.name} cannot join a network")
        if directory is None:
            raise InternalError(f"backend {self.name} was given no directory")
        plan = unisolated_plan(
            confinement,
            workspace=directory,
            host_uid=os.geteuid(),
            host_gid=os.getegid(),
            memory_held_by_cgroup="memory" in self._facilities.held,
        )
        return await build_in_cgroup(self._facilities, plan, confinement, lambda: None)
