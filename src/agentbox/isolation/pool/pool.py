# SPDX-License-Identifier: MIT
"""The warm pool: boxes with a warm interpreter in them, in stock for each owner, made anew off the path of requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import OrderedDict, deque
from collections.abc import Coroutine, Mapping, Sequence

from agentbox.errors import AgentboxError, IsolationError
from agentbox.isolation.backend import LiveBox, Program, Watch, cgroup_limits
from agentbox.isolation.boxes import CommandExit
from agentbox.isolation.facilities import Facilities
from agentbox.isolation.network import Closable, WayOutMaker
from agentbox.isolation.plan import WORKSPACE, GuardView, HostView, asking_plan, disk_of, jail_plan, judged_plan
from agentbox.isolation.pool.box import COLD_NAMES, PooledBox, WarmProgram, told_end
from agentbox.isolation.pool.held import HeldBox
from agentbox.isolation.pool.node_stock import NodeStock
from agentbox.isolation.pool.nursery import LIBRARY, MAKER, GuardFiles, Nursery
from agentbox.isolation.pool.shape import PoolShape
from agentbox.isolation.pool.watched import WatchedBox, is_short_enough
from agentbox.isolation.pool.zygote import Zygote
from agentbox.linux.cgroups import Cgroup, CgroupLimits, CgroupTree
from agentbox.models import Confinement
from agentbox.records import dataclass

_log = logging.getLogger("agentbox.pool")
# A maker or an interpreter that cannot be started is tried again after so long.
_RETRY_SECONDS = 5.0
_PAUSE_SECONDS = 0.02
_COVERED = (WORKSPACE, "/tmp", "/dev/shm", "/dev/pts", "/proc")  # noqa: S108
_KEPT_CGROUPS = 4
# A server that is starting waits so long for its stock; a large one is filled behind it.
_FIRST_SECONDS = 1.0


@dataclass(slots=True)
class _Stocked:
    zygote: Zygote | None
    ready: deque[PooledLiveBox]
    task: asyncio.Task[None] | None = None
    # Of the last run with one, as its guard read it: the next one's is likely the same.
    policy: bytes = b""

    def expect(self, policy: bytes) -> None:
        """A run has that policy."""
        self.policy = policy


class PooledLiveBox(LiveBox):
    """A live box of the pool. Its last processes are taken apart after its result is known; the pool waits for that."""

    def __init__(
        self, pool: WarmPool, box: PooledBox, confinement: Confinement, cgroup: Cgroup | None, start: str
    ) -> None:
        super().__init__(box, confinement, cgroup, lambda: pool.give_back(box))
        self._pool = pool
        self.pooled = box
        self.start_kind = start
        # See HeldNetwork.
        self.fitted: Closable | None = None

    def tighten(self, confinement: Confinement) -> None:
        """Change its limits before its first program. Raises ConfinementError."""
        if confinement.limits != self._confinement.limits:
            if self._cgroup is not None:
                self._cgroup.set_limits(cgroup_limits(confinement.limits))
            self.pooled.process_limit = confinement.limits.pids + 1
            self._confinement = confinement

    def ready_streams(self, argv: Sequence[str], env: Mapping[str, str], stdin: bytes) -> tuple[int, int] | None:
        """See LiveBox."""
        return self.pooled.ready_streams(argv, env, stdin)

    def entrust(self, argv: Sequence[str], env: Mapping[str, str], content: bytes) -> bool:
        """See LiveBox."""
        return self.pooled.entrust(argv, env, content)

    def let_go(self) -> bool:
        """See LiveBox: the pool waits for its end."""
        if isinstance(self.pooled, WatchedBox) and not self.pooled.heard:
            return False
        self._pool.bury(self)
        return True

    async def destroy(self) -> None:
        """See LiveBox."""
        if isinstance(self.pooled, WatchedBox):
            await self.pooled.hear_out()
        self._pool.bury(self)

    async def taken_apart(self) -> None:
        """See LiveBox."""
        await self.pooled.taken_apart()

    async def end(self) -> None:
        """What `destroy` leaves to the pool."""
        if self.fitted is not None:
            self.fitted.close()
        try:
            await self.pooled.destroy()
        finally:
            cgroup, self._cgroup = self._cgroup, None
            if cgroup is not None:
                await self._pool.take_back(cgroup)
            self._on_gone()


class WarmPool:
    """Boxes of one shape: the given interpreter's directories, any limits of memory, processes and
    processors. Everything else is built by the launcher. `program` is the Python of which there is stock, if any; see
    `stock_node` for the other one.

    Boxes that are `watched` (watched.py) serve that Python alone: with a `guard` under any policy, else under none. In
    stock for runs with a `way_out`, their networks are fitted out; others lead nowhere."""

    def __init__(
        self,
        facilities: Facilities,
        host: HostView,
        shape: PoolShape,
        confinement: Confinement,
        program: WarmProgram | None,
        *,
        watched: bool = False,
        guard: GuardFiles | None = None,
        way_out: WayOutMaker | None = None,
    ) -> None:
        self._facilities = facilities
        self._shape = shape
        self._confinement = confinement
        self._program = program
        self._watched = watched
        self._guard = guard
        plan = jail_plan(confinement, host, host_uid=0, host_gid=0, memory_held_by_cgroup=True)
        if watched:
            shown = GuardView(guard.source, guard.directory, guard.channel) if guard is not None else None
            plan = judged_plan(plan, shown)
        self._way_out = way_out
        if way_out is not None:
            plan = asking_plan(plan, way_out.name_server)
        self._plan = plan
        self._nursery: Nursery | None = None
        self._opening = asyncio.Lock()
        self._node: NodeStock | None = None
        self._stock: OrderedDict[str, _Stocked] = OrderedDict()
        self._burials: set[asyncio.Task[None]] = set()
        # Control groups cost more to make than to use again.
        self._cgroups: list[Cgroup] = []
        self._closed = False

    @staticmethod
    def missing(facilities: Facilities, confinement: Confinement | None = None) -> str:
        """What this host lacks for a pool, for one with boxes under that confinement; empty where nothing."""
        if not MAKER.exists() or not LIBRARY.exists():
            return "the compiled part of agentbox is not installed (it is built by a C compiler at installation)"
        if "memory" not in facilities.held or "pids" not in facilities.held:
            return "no control group holds memory and processes here"
        for path in confinement.read_only if confinement is not None else ():
            # What a box mounts over its nursery's view covers everything below.
            if any(path == own or path.startswith(own + "/") for own in _COVERED):
                return f"the interpreter needs {path}, where a box has files of its own; put it elsewhere"
        return ""

    async def start(self, owner: str) -> None:
        """Open the nursery, and stock for the first owner, so that the first run finds something. Raises
        IsolationError."""
        await self._open()
        if self._program is None:
            return
        self._restock(owner)
        filling = self._stock[owner].task
        if filling is not None:
            await asyncio.wait({filling}, timeout=_FIRST_SECONDS)

    def stock_node(self, confinement: Confinement, program: WarmProgram) -> None:
        """Keep Node in stock too, after `start`. Its confinement must fit this pool."""
        self._node = NodeStock(self._shape.node_size, confinement, program, self._make_alone, self.bury)
        self._node.restock()

    async def _open(self) -> Nursery | None:
        """The nursery, made anew where there is none; None when the pool was closed meanwhile."""
        async with self._opening:
            if self._nursery is None or not self._nursery.alive:
                nursery = Nursery(self._facilities, self._plan, self._modules(), self._guard)
                await nursery.start()
                if self._closed:
                    await nursery.close()
                    return None
                nursery.on_gone = lambda: self._lost(nursery)
                self._nursery = nursery
            return self._nursery

    def _modules(self) -> tuple[str, ...]:
        """What is loaded before a guard is armed may hold functions that it replaces."""
        return self._shape.modules if self._guard is None else ()

    def _lost(self, nursery: Nursery) -> None:
        """The maker was killed, and everything in its nursery with it."""
        if self._nursery is not nursery or self._closed:
            return
        _log.warning("the maker of warm boxes ended; it is started again")
        self._nursery = None
        for stocked in self._stock.values():
            while stocked.ready:
                self.bury(stocked.ready.popleft())
            stocked.zygote = None
        self._keep(nursery.close())
        for owner in self._stock:
            self._restock(owner)
        if self._node is not None:
            self._node.clear()
            self._node.restock()

    def _keep(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._burials.add(task)
        task.add_done_callback(self._burials.discard)

    def fits(self, confinement: Confinement) -> bool:
        """Whether a box of this pool can hold that confinement."""
        return (
            confinement.read_only == self._confinement.read_only
            and (confinement.policy_sha256 is not None) == (self._guard is not None)
            and (self._guard is not None or not confinement.files)
        )

    async def launch_watched(self, confinement: Confinement, program: Program, watch: Watch) -> LiveBox | None:
        """As `launch`, for a program that is watched."""
        warm = self._program
        if warm is None or not warm.accepts(program.argv, program.env, cold_names=COLD_NAMES):
            return None
        if not is_short_enough(warm, program.argv, program.env):
            return None
        try:
            box = await self.launch(confinement, program)
        except IsolationError as error:
            _log.warning("a watched run starts cold: %s", error)
            return None
        if isinstance(box, PooledLiveBox) and isinstance(box.pooled, WatchedBox):
            box.pooled.watch(watch, confinement)
            stocked = self._stock.get(program.owner)
            if stocked is not None:
                box.pooled.on_policy = stocked.expect
        return box

    async def launch(self, confinement: Confinement, program: Program) -> LiveBox | None:
        """A box for that program: from stock, else made now. None when the pool has none to give: then the launcher
        must build one."""
        nursery = self._nursery
        if self._closed or not self.fits(confinement):
            return None
        if nursery is None or not nursery.alive:
            if self._program is not None:
                self._restock(program.owner)
            return None
        if self._node is not None and self._node.fits(confinement, program):
            node = await self._node.take()
            if node is not None:
                node.tighten(confinement)
                return node
            if not nursery.alive:
                return None
        warm = self._program is not None and self._program.accepts(program.argv, program.env, cold_names=COLD_NAMES)
        stocked = self._stock.get(program.owner) if warm else None
        if warm:
            if stocked is not None:
                self._stock.move_to_end(program.owner)
            box = self._take(stocked, confinement) if stocked else None
            if self._watched and box is not None and stocked is not None and stocked.ready:
                # What it takes to make another is not taken from a run that has only begun.
                asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._restock, program.owner)
            else:
                self._restock(program.owner)
            if box is not None:
                return box
            stocked = self._stock.get(program.owner)
            if stocked is None or stocked.zygote is None or not stocked.zygote.alive:
                return None
        zygote = stocked.zygote if stocked is not None else None
        try:
            return await self._make(nursery, confinement, zygote)
        except (IsolationError, OSError) as error:
            _log.warning("a run starts cold: %s", error)
            return None

    def _take(self, stocked: _Stocked, confinement: Confinement) -> LiveBox | None:
        if confinement.limits.disk_mb != self._confinement.limits.disk_mb:
            return None
        while stocked.ready:
            box = stocked.ready.popleft()
            if not box.pooled.fresh:
                self.bury(box)
                continue
            box.tighten(confinement)
            return box
        return None

    async def _make(self, nursery: Nursery, confinement: Confinement, zygote: Zygote | None) -> PooledLiveBox:
        facilities, limits = self._facilities, confinement.limits
        uid, gid = facilities.ids.take()
        cgroup: Cgroup | None = None
        box: PooledBox | None = None
        try:
            if facilities.cgroups is not None:
                cgroup = self._group(facilities.cgroups, cgroup_limits(limits))
            joins = cgroup.attach_fds() if cgroup is not None else ()
            program = self._program if zygote is not None else None
            if zygote is None or program is None:
                made = await nursery.make_box(*disk_of(limits), uid, gid)
                box = PooledBox(nursery, made, joins, limits.pids + 1)
            elif self._watched:
                made = await nursery.make_box(*disk_of(limits), uid, gid, pipes=True)
                box = watched = WatchedBox(nursery, made, joins, limits.pids + 1)
                if (stocked := self._stock.get(zygote.owner)) is not None:
                    watched.expect(stocked.policy)
                await watched.warm(zygote, program)
            else:
                ended: asyncio.Future[CommandExit] = asyncio.get_running_loop().create_future()
                forked: list[PooledBox] = []

                def reaped(status: int, cpu_ms: float, max_rss_bytes: int) -> None:
                    tell = forked[0].reaped if forked else told_end(ended)
                    tell(status, cpu_ms, max_rss_bytes)

                made = await zygote.make_box(*disk_of(limits), (uid, gid), joins, reaped)
                box = PooledBox(nursery, made, joins, limits.pids + 1)
                forked.append(box)
                box.warmed(program, ended)
        except BaseException:
            if box is not None:
                await box.destroy()
            if cgroup is not None:
                await asyncio.to_thread(cgroup.destroy)
            facilities.ids.give_back(uid)
            raise
        return PooledLiveBox(self, box, confinement, cgroup, "forked" if zygote is not None else "made")

    async def _make_alone(self, confinement: Confinement) -> PooledLiveBox:
        """A box in which nothing runs yet. Raises IsolationError."""
        nursery = await self._open()
        if nursery is None:
            raise IsolationError("the warm pool was closed", hint="start the server again")
        return await self._make(nursery, confinement, None)

    def _group(self, tree: CgroupTree, limits: CgroupLimits) -> Cgroup:
        if self._cgroups:
            cgroup = self._cgroups.pop()
            cgroup.set_limits(limits)
            return cgroup
        return tree.create(os.urandom(8).hex(), limits)

    async def take_back(self, cgroup: Cgroup) -> None:
        """The control groups of a box that is gone: kept for another one, with counters that begin anew, or removed."""
        if not self._closed and cgroup.begin_anew():
            self._cgroups.append(cgroup)
        else:
            await asyncio.to_thread(cgroup.destroy)
        # What a burst needed goes with it: each holds some descriptors.
        while len(self._cgroups) > _KEPT_CGROUPS + len(self._burials):
            await asyncio.to_thread(self._cgroups.pop().destroy)

    def give_back(self, box: PooledBox) -> None:
        """The box is gone."""
        self._facilities.ids.give_back(box.plan.host_uid)

    def bury(self, box: PooledLiveBox) -> None:
        """See to it that a box is taken apart."""
        if not box.pooled.silent:
            box.kill()
        self._keep(box.end())
        if self._node is not None:
            self._node.restock()

    # Stock.

    def _restock(self, owner: str) -> None:
        if self._closed:
            return
        stocked = self._stock.get(owner)
        if stocked is None:
            stocked = self._stock[owner] = _Stocked(None, deque())
            while len(self._stock) > self._shape.owners:
                _, oldest = self._stock.popitem(last=False)
                self._close_stock(oldest)
        if stocked.task is None or stocked.task.done():
            wanted = len(stocked.ready) < self._shape.size
            if wanted or stocked.zygote is None or not stocked.zygote.alive or stocked.zygote.spent:
                stocked.task = asyncio.create_task(self._fill(owner, stocked))

    async def _fill(self, owner: str, stocked: _Stocked) -> None:
        try:
            nursery = await self._open()
            if nursery is None or self._program is None:
                return
            await self._renew(nursery, owner, stocked, self._program)
            zygote = stocked.zygote
            while zygote is not None and len(stocked.ready) < self._shape.size and not self._closed:
                box = await self._make(nursery, self._confinement, zygote)
                if self._way_out is not None:
                    await self._fit_out(box, self._way_out)
                if self._closed or self._stock.get(owner) is not stocked or stocked.zygote is not zygote:
                    self.bury(box)
                    return
                box.start_kind = "warm"
                stocked.ready.append(box)
        except (AgentboxError, OSError) as error:
            if not self._closed:
                _log.warning("the warm pool cannot be filled: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _fit_out(self, box: PooledLiveBox, way_out: WayOutMaker) -> None:
        held = HeldBox.of(box, {})
        try:
            if held is None:
                raise IsolationError("a box ended before it was in stock", hint="try again")
            held.fitted = await way_out.fit_out(held)
        except BaseException:
            self.bury(box)
            raise
        finally:
            if held is not None:
                held.leave()

    async def _renew(self, nursery: Nursery, owner: str, stocked: _Stocked, program: WarmProgram) -> None:
        """An interpreter that is warm and not at the end of its life; the boxes of the one before go with it."""
        old = stocked.zygote
        if old is not None and old.alive and not old.spent:
            return
        shape = self._shape
        zygote = Zygote(nursery, owner, max_forks=shape.runs, max_seconds=shape.seconds)
        zygote.on_gone = lambda: self._zygote_gone(owner, stocked, zygote)
        await zygote.start(program.argv[0], program.env if program.started_with is None else program.started_with)
        stocked.zygote = zygote
        while stocked.ready:
            self.bury(stocked.ready.popleft())
        if old is not None:
            old.retire()

    def _zygote_gone(self, owner: str, stocked: _Stocked, zygote: Zygote) -> None:
        if stocked.zygote is not zygote or self._closed:
            return
        stocked.zygote = None
        while stocked.ready:
            self.bury(stocked.ready.popleft())
        if self._stock.get(owner) is stocked:
            asyncio.get_running_loop().call_soon(self._restock, owner)

    def _close_stock(self, stocked: _Stocked) -> None:
        if stocked.task is not None:
            stocked.task.cancel()
        while stocked.ready:
            self.bury(stocked.ready.popleft())
        zygote, stocked.zygote = stocked.zygote, None
        if zygote is not None:
            zygote.retire()

    async def close(self) -> None:
        """End everything of it; boxes that were taken must have been destroyed."""
        self._closed = True
        tasks = [stocked.task for stocked in self._stock.values() if stocked.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stocked in self._stock.values():
            self._close_stock(stocked)
        self._stock.clear()
        if self._node is not None:
            await self._node.close()
        while self._burials:
            await asyncio.gather(*self._burials, return_exceptions=True)
        kept, self._cgroups = self._cgroups, []
        for cgroup in kept:
            await asyncio.to_thread(cgroup.destroy)
        if self._nursery is not None:
            nursery, self._nursery = self._nursery, None
            with contextlib.suppress(IsolationError):
                await nursery.close()

    def describe(self) -> Mapping[str, int]:
        """How many owners have stock, how many boxes wait in it, and in how many Node waits."""
        ready = sum(len(stocked.ready) for stocked in self._stock.values())
        return {"owners": len(self._stock), "ready": ready, "node": self._node.ready if self._node is not None else 0}
