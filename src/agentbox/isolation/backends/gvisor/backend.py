# SPDX-License-Identifier: MIT
"""Boxes with gVisor's kernel: how one is planned and built, and what holds what in it."""

from __future__ import annotations

from agentbox.errors import ConfinementError
from agentbox.isolation.backends.gvisor import images, planning
from agentbox.isolation.backends.gvisor.building import build, must_load, refusal, seen
from agentbox.isolation.backends.gvisor.inspecting import interpreters_in
from agentbox.isolation.backends.gvisor.live import GvisorLiveBox
from agentbox.isolation.backends.gvisor.stock import Stock
from agentbox.isolation.plan import jail_plan, watched_plan
from agentbox.models import Confinement, Enforcement, Layer, Limits
from agentbox.records import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbox.isolation.backend import LiveBox, Program, Watch
    from agentbox.isolation.facilities import Facilities
    from agentbox.isolation.interpreters import Found
    from agentbox.isolation.network import Network
    from agentbox.isolation.plan import LaunchPlan
    from agentbox.isolation.requirement import Requirement

_LOOKING = Limits(timeout_seconds=60, memory_mb=256, cpus=1.0, pids=32, disk_mb=8, max_output_bytes=1 << 16)


@dataclass(frozen=True, slots=True)
class Kind:
    """What of a confinement a box without a policy is made with; the rest can change while it waits."""

    pids: int
    disk_mb: int
    read_only: tuple[str, ...]
    image: str


class GvisorBackend:
    """A box is runsc in namespaces of ours: gVisor's kernel serves the programs, the host's holds what gVisor is made
    of."""

    name = "gvisor"
    isolated = True
    needs_directory = False
    judges = True
    guards = True
    own_kernel = True

    def __init__(self, facilities: Facilities) -> None:
        self._facilities = facilities
        self._stock: Stock[Kind, GvisorLiveBox] | None = None
        self._limits: Limits | None = None
        self._inside: Mapping[str, Found] | None = None

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

    async def interpreters(self) -> Mapping[str, Found] | None:
        """See Backend."""
        image = self._facilities.gvisor.image
        if not image:
            return None
        if self._inside is None:
            box = await self._build(Confinement(_LOOKING, image=image), None, None)
            try:
                self._inside = await interpreters_in(box, image)
            finally:
                await box.destroy()
        return self._inside

    def refuses(self, confinement: Confinement) -> str:
        """See Backend."""
        if self._facilities.gvisor.image:
            return "backend gvisor holds policies for the host's programs only, not for an image's"
        return refusal(confinement)

    async def hold_network(
        self, confinement: Confinement | None = None, watch: Watch | None = None, program: Program | None = None
    ) -> None:
        """See Backend: its boxes join any."""
        del confinement, watch, program

    async def close(self) -> None:
        """See Backend: its stock ends with the facilities."""

    async def launch(
        self,
        confinement: Confinement,
        directory: str | None = None,
        watch: Watch | None = None,
        network: Network | None = None,
        program: Program | None = None,
    ) -> LiveBox:
        """See Backend."""
        del directory
        if watch is not None and confinement.policy_sha256 is not None:
            must_load(watch.command[0])
        box = None
        if program is not None and network is None:
            box = await self._from_stock(confinement, watch)
        if box is None:
            box = await self._build(confinement, watch, network)
        return box if watch is None else await seen(box, watch.on_spawn, everything=False)

    async def _from_stock(self, confinement: Confinement, watch: Watch | None) -> GvisorLiveBox | None:
        """A box that waited, if one fits."""
        if confinement.policy_sha256 is not None or (watch is not None and watch.guard is not None):
            return None
        if self._stock is None:
            self._stock = Stock(self._facilities.gvisor.pool_size, self._make)
        limits = self._limits = confinement.limits
        box = self._stock.take(Kind(limits.pids, limits.disk_mb, confinement.read_only, confinement.image))
        if box is None:
            return None
        try:
            box.give_to(confinement)
        except ConfinementError:
            # It has used more than it would be allowed.
            await box.destroy()
            return None
        return box

    async def _make(self, kind: Kind) -> GvisorLiveBox:
        """A box for the stock."""
        assert self._limits is not None
        limits = replace(self._limits, pids=kind.pids, disk_mb=kind.disk_mb)
        return await self._build(Confinement(limits, kind.read_only, image=kind.image), None, None)

    async def _build(self, confinement: Confinement, watch: Watch | None, network: Network | None) -> GvisorLiveBox:
        gvisor = self._facilities.gvisor
        image = images.find(gvisor.images, confinement.image) if confinement.image else None
        view = images.view(image) if image is not None else self._facilities.host_view()

        def plan_for(uid: int) -> LaunchPlan:
            plan = jail_plan(confinement, view, host_uid=uid, host_gid=uid, memory_held_by_cgroup=True)
            if image is not None:
                plan = images.shown(plan, image)
            return plan if watch is None else watched_plan(plan, confinement, watch.command, watch.guard)

        return await build(self._facilities, plan_for, confinement, network=network)
