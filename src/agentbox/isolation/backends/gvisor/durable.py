# SPDX-License-Identifier: MIT
"""Durable gVisor boxes: no program of their own, the host's directory at /work and /root, the agent started in them.

A box dies with its owner, as every box of the launcher does. Its first process is nobody's, so that no program in it can
end it; where one does nevertheless, gVisor ends, and the box is gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentbox.isolation.backend import build_in_cgroup
from agentbox.isolation.backends.gvisor import planning
from agentbox.isolation.backends.gvisor.ids import BoxIds
from agentbox.isolation.backends.gvisor.live import GvisorLiveBox
from agentbox.isolation.durable import HOME, DurableBox, DurableRequest, Leftover, agent_files
from agentbox.isolation.durable_jail import JailBox
from agentbox.isolation.facilities import Facilities
from agentbox.isolation.plan import durable_plan, jail_plan
from agentbox.isolation.requirement import Requirement
from agentbox.models import Enforcement, Layer, Limits
from agentbox.records import replace

# CHOWN, DAC_OVERRIDE, FOWNER, SETGID, SETUID: what installing software takes.
ROOT_CAPABILITIES = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 6 | 1 << 7
# What a box may write beside its workspace: /tmp and /dev/shm, which are memory.
_TEMPORARY_MB = 256
# The agent, and a keeper for each command, are processes of the box too.
_OWN_PROCESSES = 24


class GvisorDurable:
    """Makes durable boxes with gVisor's kernel."""

    name = "gvisor"

    def __init__(self, facilities: Facilities) -> None:
        self._facilities = facilities

    def requirements(self) -> tuple[Requirement, ...]:
        """See DurableBackend."""
        return planning.requirements()

    async def launch_durable(self, request: DurableRequest) -> DurableBox:
        """See DurableBackend."""
        facilities = self._facilities
        confinement = replace(request.confinement, limits=own_limits(request.confinement.limits))
        ids = BoxIds(facilities)
        try:
            base = jail_plan(
                confinement,
                facilities.host_view(),
                host_uid=ids.user,
                host_gid=ids.user,
                memory_held_by_cgroup=True,
            )
            plan = durable_plan(base, workspace=request.workspace, home=HOME, user=request.user, files=agent_files())
            plan = planning.gvisor_plan(
                plan,
                confinement.limits,
                ids.all,
                joins_network=request.network is not None,
                capabilities=ROOT_CAPABILITIES if request.user == "root" else 0,
            )
            live = await build_in_cgroup(
                facilities,
                plan,
                confinement,
                ids.give_back,
                network=request.network,
                limits=planning.group_limits(confinement.limits),
                kind=GvisorLiveBox,
            )
        except BaseException:
            ids.give_back()
            raise
        assert isinstance(live, GvisorLiveBox)
        return JailBox(request, live.gvisor, live, self.enforcement(request))

    def enforcement(self, request: DurableRequest) -> Enforcement:
        """What holds what: the workspace lies on the host's disk, whose space nothing here counts."""
        held = self._facilities.held
        return Enforcement(
            filesystem=Layer.KERNEL,
            network=Layer.GATEWAY if request.network is not None else Layer.KERNEL,
            exec=Layer.NONE,
            memory=Layer.KERNEL if "memory" in held else Layer.NONE,
            pids=Layer.KERNEL,
            cpu=Layer.KERNEL if "cpu" in held else Layer.NONE,
            disk=Layer.NONE,
        )

    async def leftovers(self) -> Sequence[Leftover]:
        """See DurableBackend: a box dies with its owner, and Facilities.open sweeps control groups."""
        return ()


def own_limits(limits: Limits) -> Limits:
    """Those of the box: the kernel counts files in memory as memory, so that both together are what was asked for."""
    temporary = max(1, min(_TEMPORARY_MB, limits.memory_mb // 4))
    return replace(
        limits, memory_mb=limits.memory_mb - temporary, disk_mb=temporary, pids=limits.pids + _OWN_PROCESSES
    )
