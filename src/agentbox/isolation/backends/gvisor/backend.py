# SPDX-License-Identifier: MIT
"""Boxes with gVisor's kernel: how one is planned and built, and what holds what in it."""

from __future__ import annotations

from agentbox.errors import ConfinementError
from agentbox.isolation.backend import build_in_cgroup
from agentbox.isolation.backends.gvisor import planning
from agentbox.isolation.backends.gvisor.ids import BoxIds
from agentbox.isolation.backends.gvisor.live import GvisorLiveBox
from agentbox.isolation.plan import jail_plan, watched_plan
from agentbox.models import Enforcement, Layer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.isolation.backend import LiveBox, Program, Watch
    from agentbox.isolation.facilities import Facilities
    from agentbox.isolation.network import Network
    from agentbox.isolation.requirement import Requirement
    from agentbox.models import Confinement


class GvisorBackend:
    """A box is runsc in namespaces of ours: gVisor's kernel serves the programs, the host's holds what gVisor is made
    of."""

    name = "gvisor"
    isolated = True
    needs_directory = False
    judges = True
    own_kernel = True

    def __init__(self, facilities: Facilities) -> None:
        self._facilities = facilities

    def requirements(self) -> tuple[Requirement, ...]:
        """See Backend."""
        return planning.requirements()

    def claims(self) -> Enforcement:
        """See Backend."""
        held = self._facilities.held
        return Enforcement(
            filesystem=Layer.KERNEL,
            network=Layer.KERNEL,
            exec=Layer.NONE,
            memory=Layer.KERNEL if "memory" in held else Layer.NONE,
            pids=Layer.KERNEL,
            cpu=Layer.KERNEL if "cpu" in held else Layer.NONE,
            disk=Layer.KERNEL,
        )

    async def interpreters(self) -> None:
        """See Backend: boxes show the host's."""

    def refuses(self, confinement: Confinement) -> str:
        """See Backend."""
        granted = next((rule for rules in confinement.programs for rule in rules if not rule.deny), None)
        if granted is None:
            return ""
        return (
            f"`{granted.rule}` cannot be held by backend gvisor: its kernel can keep a program from starting others, "
            "and cannot tell which"
        )

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
        del directory, program
        if watch is not None and confinement.policy_sha256 is not None and not planning.is_dynamic(watch.command[0]):
            raise ConfinementError(
                f"{watch.command[0]} is linked statically: gVisor cannot keep it from starting programs",
                hint="use another interpreter, or backend jail",
                step="exec rules",
                errno=0,
            )
        box = await self._build(confinement, watch, network)
        try:
            if watch is not None:
                await box.be_seen(watch.on_spawn, everything=False)
        except BaseException:
            await box.destroy()
            raise
        return box

    async def _build(self, confinement: Confinement, watch: Watch | None, network: Network | None) -> GvisorLiveBox:
        facilities = self._facilities
        ids = BoxIds(facilities)
        try:
            plan = jail_plan(
                confinement,
                facilities.host_view(),
                host_uid=ids.user,
                host_gid=ids.user,
                memory_held_by_cgroup=True,
            )
            if watch is not None:
                plan = watched_plan(plan, confinement, watch.command, watch.guard)
            plan = planning.gvisor_plan(
                plan, confinement.limits, ids.all, joins_network=network is not None
            )
            box = await build_in_cgroup(
                facilities,
                plan,
                confinement,
                ids.give_back,
                network=network,
                limits=planning.group_limits(confinement.limits),
                kind=GvisorLiveBox,
            )
        except BaseException:
            ids.give_back()
            raise
        assert isinstance(box, GvisorLiveBox)
        if confinement.policy_sha256 is not None:
            box.hold_programs()
        return box
