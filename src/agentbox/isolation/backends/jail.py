# SPDX-License-Identifier: MIT
"""Backend `jail`: Linux namespaces, own root, seccomp, Landlock, cgroup limits, no capabilities."""

from __future__ import annotations

from agentbox.isolation import host
from agentbox.isolation.backend import build_in_cgroup
from agentbox.isolation.plan import jail_plan, watched_plan
from agentbox.models import Enforcement, Layer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agentbox.isolation.backend import LiveBox, Program, Watch
    from agentbox.isolation.facilities import Facilities
    from agentbox.isolation.network import HeldNetwork, Network, WayOutMaker
    from agentbox.isolation.pool.held import HeldBox
    from agentbox.isolation.pool.lazy import LazyPool
    from agentbox.isolation.pool.nursery import GuardFiles
    from agentbox.isolation.pool.pool import WarmPool
    from agentbox.isolation.pool.shape import PoolShape
    from agentbox.isolation.requirement import Requirement
    from agentbox.models import Confinement


class JailBackend:
    """Boxes made of the kernel's own mechanisms; nothing to install."""

    name = "jail"
    isolated = True
    needs_directory = False
    judges = True
    guards = True
    own_kernel = False

    def __init__(self, facilities: Facilities) -> None:
        self._facilities = facilities
        self._view = host.view()
        self._pool: WarmPool | None = None
        self._node_pool: WarmPool | None = None
        # By whether a guard is loaded, with a policy and not for a trace alone, and whether there will be a way out.
        self._watched: dict[tuple[bool, bool], LazyPool] = {}
        # Boxes whose network somebody fits out, before they are launched.
        self._held: dict[str, HeldBox] = {}

    def requirements(self) -> tuple[Requirement, ...]:
        """See Backend."""
        return host.kernel_requirements()

    async def interpreters(self) -> None:
        """See Backend: boxes show the host's."""

    def refuses(self, confinement: Confinement) -> str:
        """See Backend."""
        del confinement
        return ""

    def claims(self) -> Enforcement:
        """See Backend."""
        held = self._facilities.held
        return Enforcement(
            filesystem=Layer.KERNEL,
            network=Layer.KERNEL,
            exec=Layer.NONE,
            memory=Layer.KERNEL if "memory" in held else Layer.SUPERVISOR,
            pids=Layer.KERNEL,
            cpu=Layer.KERNEL if "cpu" in held else Layer.NONE,
            disk=Layer.KERNEL,
        )

    @property
    def pool(self) -> WarmPool | None:
        """The warm pool, where there is one."""
        return self._pool

    async def open_pool(
        self,
        shape: PoolShape,
        python: tuple[Confinement, Program] | None,
        node: tuple[Confinement, Program] | None = None,
    ) -> str:
        """Keep boxes warm for such programs under such confinements. Returns what this host lacks for it, empty where
        nothing. Raises IsolationError."""
        from agentbox.isolation.pool.box import WarmProgram
        from agentbox.isolation.pool.pool import WarmPool

        lacks = WarmPool.missing(self._facilities)
        if lacks:
            return lacks
        if python is not None and (lacks := WarmPool.missing(self._facilities, python[0])):
            python = None
        if node is not None and (hidden := WarmPool.missing(self._facilities, node[0])):
            lacks, node = lacks or hidden, None
        if python is not None:
            confinement, program = python
            warm = WarmProgram(program.argv, program.env)
            self._pool = pool = WarmPool(self._facilities, self._view, shape, confinement, warm)
            await pool.start(program.owner)
        if node is not None and shape.node_size:
            confinement, program = node
            # A box shows the directories of one interpreter alone.
            if self._pool is None or not self._pool.fits(confinement):
                self._node_pool = WarmPool(self._facilities, self._view, shape, confinement, None)
                await self._node_pool.start(program.owner)
            fitting = self._node_pool or self._pool
            assert fitting is not None
            fitting.stock_node(confinement, WarmProgram(program.argv, program.env))
        return lacks

    def offer_watched(
        self,
        shape: PoolShape,
        confinement: Confinement,
        program: Program,
        guard: Callable[[], Awaitable[GuardFiles]] | None = None,
        *,
        way_out: WayOutMaker | None = None,
        now: bool = False,
    ) -> None:
        """Keep boxes warm for such programs where they are watched: under policies with what `guard` gives, without it
        for traces alone; with a `way_out`, for those that have one. They are made `now`, or when the first such
        run comes. `program` says with what its interpreter starts."""
        from agentbox.isolation.pool.box import WarmProgram
        from agentbox.isolation.pool.lazy import LazyPool
        from agentbox.isolation.pool.pool import WarmPool

        if self._pool is None:
            return

        async def make() -> WarmPool:
            files = await guard() if guard is not None else None
            warm = WarmProgram(program.argv, program.env, program.started_with)
            return WarmPool(
                self._facilities,
                self._view,
                shape,
                confinement,
                warm,
                watched=True,
                guard=files,
                way_out=way_out,
            )

        lazy = self._watched[guard is not None, way_out is not None] = LazyPool(program.owner, make)
        if now:
            lazy.open()

    async def hold_network(
        self, confinement: Confinement | None = None, watch: Watch | None = None, program: Program | None = None
    ) -> HeldNetwork | None:
        """See Backend: boxes that the launcher builds join any; one of the pool has its own."""
        if confinement is None or watch is None or program is None:
            return None
        box = await self._warm(confinement, watch, program, attached=True)
        if box is None:
            return None
        from agentbox.isolation.pool.held import HeldBox
        from agentbox.isolation.pool.pool import PooledLiveBox

        assert isinstance(box, PooledLiveBox)
        held = HeldBox.of(box, self._held)
        if held is None:
            await box.destroy()
            return None
        return held

    async def _warm(
        self, confinement: Confinement, watch: Watch, program: Program, *, attached: bool
    ) -> LiveBox | None:
        lazy = self._watched.get((watch.guard is not None, attached))
        ready = lazy.ready() if lazy is not None else None
        return await ready.launch_watched(confinement, program, watch) if ready is not None else None

    async def close(self) -> None:
        """End the warm pool."""
        watched, self._watched = self._watched, {}
        for lazy in watched.values():
            await lazy.close()
        pools, self._pool, self._node_pool = (self._pool, self._node_pool), None, None
        for pool in pools:
            if pool is not None:
                await pool.close()

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
        if program is not None and watch is None and network is None:
            for pool in (self._pool, self._node_pool):
                box = await pool.launch(confinement, program) if pool is not None else None
                if box is not None:
                    return box
        if program is not None and watch is not None and network is None:
            box = await self._warm(confinement, watch, program, attached=False)
            if box is not None:
                return box
        if network is not None and (held := self._held.get(network.holder)) is not None:
            return held.take()
        facilities = self._facilities
        uid, gid = facilities.ids.take()
        try:
            plan = jail_plan(
                confinement,
                self._view,
                host_uid=uid,
                host_gid=gid,
                memory_held_by_cgroup="memory" in facilities.held,
            )
            if watch is not None:
                plan = watched_plan(plan, confinement, watch.command, watch.guard)
            on_spawn = watch.on_spawn if watch is not None else None
            return await build_in_cgroup(
                facilities,
                plan,
                confinement,
                lambda: facilities.ids.give_back(uid),
                on_spawn=on_spawn,
                network=network,
            )
        except BaseException:
            facilities.ids.give_back(uid)
            raise
