# SPDX-License-Identifier: MIT
"""Containers for single runs: how one is planned and built, and what holds what in it."""

from __future__ import annotations

import asyncio
import os
import secrets
from datetime import UTC, datetime

from agentbox.errors import AgentboxError, BackendUnavailableError, ConfinementError, InternalError
from agentbox.isolation.backend import LiveBox, cgroup_limits
from agentbox.isolation.backends.docker import holding, images, sweeping
from agentbox.isolation.backends.docker.box import DockerBox, Shown
from agentbox.isolation.backends.docker.daemon import Daemon
from agentbox.isolation.backends.docker.ground import ALONE, FILTER, INIT, STAT, STATUS, Ground, Loaded, can_bound
from agentbox.isolation.backends.docker.live import GvisorContainer
from agentbox.isolation.backends.docker.spec import LABEL_KIND, LABEL_OWNER, LABEL_STARTED, Container
from agentbox.isolation.plan import WORKSPACE
from agentbox.linux.cgroup_owners import owner_name
from agentbox.linux.cgroup_strays import remove_strays, sweep_strays
from agentbox.linux.cgroups import CgroupLimits
from agentbox.models import Enforcement, Layer
from agentbox.records import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from agentbox.isolation.backend import Program, Watch
    from agentbox.isolation.facilities import Facilities
    from agentbox.isolation.interpreters import Found
    from agentbox.isolation.network import HeldNetwork, Network
    from agentbox.isolation.requirement import Requirement
    from agentbox.linux.cgroups import Cgroup
    from agentbox.models import Confinement, Limits

_MIB = 1 << 20
# What gVisor's own kernel takes: memory, and tasks of the host for itself and for each process inside.
_GVISOR_MEMORY_MB = 128
_GVISOR_TASKS = 256
_GVISOR_TASKS_FOR_EACH = 8


class DockerBackend:
    """A box is a container of the engine that has no network, no capabilities, a read-only image, and our init."""

    name = "docker"
    isolated = True
    needs_directory = True
    judges = True

    def __init__(self, facilities: Facilities) -> None:
        self.facilities = facilities
        self.daemon = Daemon(facilities.docker)
        self._interpreters: Mapping[str, Found] | None = None
        self._swept = False

    @property
    def guards(self) -> bool:
        """Whether programs can reach a socket of the host that is shown to them."""
        return self.daemon.shows_sockets

    @property
    def own_kernel(self) -> bool:
        """Whether the runtime is gVisor's."""
        return self.daemon.runs_gvisor

    def requirements(self) -> tuple[Requirement, ...]:
        """See Backend."""
        return self.daemon.requirements()

    def claims(self) -> Enforcement:
        """See Backend."""
        gvisor = self.own_kernel
        return Enforcement(
            filesystem=Layer.KERNEL,
            network=Layer.KERNEL,
            exec=Layer.NONE,
            memory=Layer.KERNEL if self.daemon.limits_hold else Layer.NONE,
            pids=Layer.KERNEL if gvisor or self.daemon.limits_hold else Layer.NONE,
            cpu=Layer.KERNEL if self.daemon.limits_hold else Layer.NONE,
            disk=Layer.KERNEL if can_bound() and self.daemon.process() is not None else Layer.NONE,
        )

    def refuses(self, confinement: Confinement) -> str:
        """See Backend."""
        for rules in confinement.programs:
            for rule in rules:
                if not rule.deny:
                    return (
                        f"`{rule.rule}` cannot be held by backend docker: a program in a container can be kept from "
                        "starting others, and not from starting some"
                    )
        for denial in confinement.file_denials:
            if denial.present and not f"{denial.path}/".startswith(f"{WORKSPACE}/"):
                return f"`{denial.rule}` cannot be held by backend docker: it names a place of the image"
        return ""

    async def interpreters(self) -> Mapping[str, Found]:
        """The programs of the images, by language, looked for once. Raises IsolationError."""
        if self._interpreters is None:
            self._interpreters = await images.look(self.daemon)
        return self._interpreters

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
        if directory is None:
            raise InternalError("backend docker was given no directory")
        if network is not None and not network.holder:
            raise InternalError("a container joins the network of a container alone")
        await self.sweep()
        image = confinement.image or await self.daemon.default_image()
        facilities = self.facilities
        uid, gid = facilities.ids.take()
        cgroup, box = None, None
        try:
            ground = await asyncio.to_thread(
                Ground,
                directory,
                confinement.limits,
                uid,
                gid,
                daemon=self.daemon.process(),
                loaded=await self._loaded(confinement, image, watch),
            )
            cgroup = await self.group(confinement.limits)
            box = DockerBox(
                self.daemon.engine,
                f"agentbox-{secrets.token_hex(8)}",
                Shown(WORKSPACE, True, uid, gid),
                ground,
            )
            box.unix_listeners = self.listeners(network, ground)
            container = self.container(image, confinement.limits, cgroup, (uid, gid), network)
            if watch is not None and watch.guard is not None:
                ground.show(watch.guard.directory, watch.guard.shown_at)
                box.channel = ground.listen(watch.guard.channel)
            if confinement.policy_sha256 is None:
                await box.create(replace(container, binds=ground.binds()))
            else:
                box.stage(container)
        except BaseException:
            if box is not None:
                await box.destroy()
            if cgroup is not None:
                await asyncio.to_thread(cgroup.destroy)
            facilities.ids.give_back(uid)
            raise
        path = cgroup.nested_path() if cgroup is not None else None

        def on_gone() -> None:
            facilities.ids.give_back(uid)
            if path is not None:
                remove_strays(path)

        kind = GvisorContainer if self.own_kernel else LiveBox
        return kind(box, confinement, cgroup, on_gone)

    async def _loaded(self, confinement: Confinement, image: str, watch: Watch | None) -> tuple[Loaded, ...]:
        """What every program of the box loads first. Raises ConfinementError where that is not sure to hold."""
        needed = (STAT,) if self.own_kernel else ()
        if confinement.policy_sha256 is None:
            return needed
        program = watch.command[0] if watch is not None else ""
        if not await images.loads_libraries(self.daemon, image, program):
            raise ConfinementError(
                f"nothing keeps {program} of image {image} from starting programs: it is linked statically",
                hint="use an image whose interpreter is linked dynamically, or backend jail",
                step="exec rules",
                errno=0,
            )
        return (*needed, ALONE)

    async def group(self, limits: Limits) -> Cgroup | None:
        """A control group of ours that the container's is made in, where the engine can."""
        trees = self.facilities.cgroups
        if trees is None or not await self.daemon.nests_groups():
            return None
        cgroup = await asyncio.to_thread(trees.create, secrets.token_hex(8), self._group_limits(limits))
        if cgroup.nested_path() is None:
            await asyncio.to_thread(cgroup.destroy)
            return None
        return cgroup

    def _group_limits(self, limits: Limits) -> CgroupLimits:
        if not self.own_kernel:
            return cgroup_limits(limits)
        return CgroupLimits(
            (limits.memory_mb + limits.disk_mb + _GVISOR_MEMORY_MB) * _MIB,
            limits.pids * _GVISOR_TASKS_FOR_EACH + _GVISOR_TASKS,
            limits.cpus,
        )

    def container(
        self,
        image: str,
        limits: Limits,
        cgroup: Cgroup | None,
        ids: tuple[int, int],
        network: Network | None,
    ) -> Container:
        """A container for one program, but for what it shows."""
        container = Container(
            image=image,
            command=(INIT, "relay" if self.own_kernel else "run", FILTER, STATUS),
            user=f"{ids[0]}:{ids[1]}",
            directory=WORKSPACE,
            labels={
                LABEL_OWNER: owner_name(),
                LABEL_STARTED: datetime.now(UTC).isoformat(timespec="seconds"),
                LABEL_KIND: "run",
            },
            runtime=self.daemon.options.runtime if network is None else self.daemon.attached_runtime(),
            network=network.holder if network is not None else "",
            # Counted for the box alone: its uid is nobody else's. The init is one too.
            processes=limits.pids + 1 if os.geteuid() == 0 or self.own_kernel else None,
        )
        if cgroup is not None:
            return replace(container, cgroup_parent=cgroup.nested_path())
        held = self._group_limits(limits)
        return replace(container, memory_bytes=held.memory_bytes, pids=held.pids, cpus=held.cpus)

    async def sweep(self) -> None:
        """Remove what dead owners left, once. A failure is the next start's to repeat."""
        if not self._swept:
            self._swept = True
            try:
                await sweeping.sweep(self.daemon.engine)
                if (daemon := self.daemon.process()) is not None and can_bound():
                    await asyncio.to_thread(sweeping.sweep_mounts, daemon)
                await asyncio.to_thread(sweep_strays)
            except AgentboxError:
                self._swept = False

    async def hold_network(
        self, confinement: Confinement | None = None, watch: Watch | None = None, program: Program | None = None
    ) -> HeldNetwork:
        """See Backend."""
        del confinement, watch, program
        await self.sweep()
        return await holding.hold(self.daemon)

    def listeners(self, network: Network | None, ground: Ground) -> dict[str, socket.socket]:
        """The sockets of the network's UNIX paths, which the container shows there."""
        paths = network.unix_listeners if network is not None else ()
        if paths and self.own_kernel:
            raise BackendUnavailableError(
                f"unix:{paths[0]} cannot be opened to a container with gVisor's kernel",
                hint="use a `net:` rule with a host and a port, or backend jail",
            )
        return {path: ground.listen(path) for path in paths}

    async def close(self) -> None:
        """See Backend."""
        self.daemon.engine.close()
        if self._swept:
            await asyncio.to_thread(sweep_strays, owner_name())
