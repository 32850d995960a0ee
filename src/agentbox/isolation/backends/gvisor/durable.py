# SPDX-License-Identifier: MIT
"""Durable gVisor boxes: no program of their own, the host's directory at /work and /root, the agent started in them.

A box dies with its owner, as every box of the launcher does. Its first process is nobody's, so that no program in it
can end it; where one does nevertheless, gVisor ends, and the box is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence

from agentbox.errors import IsolationError, WorkspaceError
from agentbox.isolation.backends.gvisor import images, planning
from agentbox.isolation.backends.gvisor.building import build, seen
from agentbox.isolation.backends.gvisor.live import GvisorLiveBox
from agentbox.isolation.backends.gvisor.stock import Stock
from agentbox.isolation.boxes import Launcher
from agentbox.isolation.durable import (
    HOME,
    WORKSPACE,
    AgentStream,
    DurableBox,
    DurableRequest,
    Leftover,
    Spares,
    agent_commands,
    agent_files,
)
from agentbox.isolation.durable_jail import JailBox
from agentbox.isolation.facilities import Facilities
from agentbox.isolation.plan import GUEST_UID, HostView, LaunchPlan, durable_plan, jail_plan
from agentbox.isolation.requirement import Requirement
from agentbox.models import Confinement, Enforcement, Layer, Limits
from agentbox.records import dataclass, field, replace

# CHOWN, DAC_OVERRIDE, FOWNER, SETGID, SETUID: what installing software takes.
ROOT_CAPABILITIES = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 6 | 1 << 7
# What a box may write beside its workspace: /tmp and /dev/shm, which are memory.
_TEMPORARY_MB = 256
# What a root finds beside that, in memory too.
_ROOTS = (("/run", 0o755), ("/home", 0o755), ("/opt", 0o755), ("/srv", 0o755), ("/var", 0o755), ("/var/tmp", 0o1777))  # noqa: S108
# What programs that make users look for.
_FOR_NEW_USERS = (
    ("/etc/skel/.profile", ""),
    ("/etc/pam.d/other", "".join(f"{kind} required pam_permit.so\n" for kind in ("auth", "account", "session"))),
)
# One ends as the other, so that both are loaded.
_SHELLS = (("/bin/bash", "-c", "exec /bin/sh -c :"), ("/bin/sh", "-c", ":"))
_WARM_SECONDS = 10.0
# The agent, and a keeper for each command, are processes of the box too.
_OWN_PROCESSES = 24


@dataclass(frozen=True, slots=True)
class Kind:
    """What a box in stock was made with, the environment of its agent, and what makes its workspace; `key` is that of
    `spares`, which alone is compared."""

    confinement: Confinement
    user: str
    environment: frozenset[tuple[str, str]]
    key: str
    spares: Spares = field(compare=False)
    rehearse: Callable[[AgentStream], Awaitable[AgentStream]] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A box in stock, the stream to the agent that runs in it already, and its workspace, which is empty."""

    live: GvisorLiveBox
    stream: AgentStream
    workspace: str
    spares: Spares

    def is_alive(self) -> bool:
        """See Waiting."""
        return self.live.is_alive()

    async def destroy(self) -> None:
        """See Waiting."""
        await self.stream.close()
        await self.live.destroy()
        self.spares.discard(self.workspace)


class GvisorBox(JailBox):
    """A durable box of gVisor. `ready` is the stream to an agent that was started while the box waited."""

    def __init__(
        self,
        request: DurableRequest,
        live: GvisorLiveBox,
        enforcement: Enforcement,
        ready: AgentStream | None = None,
    ) -> None:
        super().__init__(request, live.gvisor, live, enforcement)
        self._ready = ready
        self._ready_for = _usual(request.environment)

    async def open_stream(self, argv: Sequence[str], env: Mapping[str, str], user: str, cwd: str) -> AgentStream:
        """See DurableBox."""
        ready, self._ready = self._ready, None
        if ready is not None:
            # Whatever is started after it finds the box swept.
            self._streams += 1
            if (tuple(argv), dict(env), user, cwd) == self._ready_for and await self.alive():
                return ready
            await ready.close()
        return await super().open_stream(argv, env, user, cwd)

    async def why_gone(self) -> str:
        """See DurableBox."""
        known = await super().why_gone()
        if not known and isinstance(self.live, GvisorLiveBox) and self.live.lacked_processes():
            return "too many processes were started in it, a fork bomb as a rule: gVisor had no thread left for them"
        return known

    async def destroy(self) -> None:
        """See DurableBox."""
        if self._ready is not None:
            await self._ready.close()
        await super().destroy()


def _usual(environment: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str], str, str]:
    """How an agent is started: argv, env, user and cwd of `open_stream`."""
    return agent_commands()[0], dict(environment), "", WORKSPACE


def stock_of(facilities: Facilities, make: Callable[[Kind], Awaitable[Prepared]]) -> Stock[Kind, Prepared]:
    """The stock of durable boxes that all sandboxes of these facilities share."""
    known = _STOCKS.get(facilities.launcher)
    if known is None:
        known = _STOCKS[facilities.launcher] = Stock(facilities.gvisor.pool_size, make)
        facilities.closing.append(known.close)
    return known


_STOCKS: weakref.WeakKeyDictionary[Launcher, Stock[Kind, Prepared]] = weakref.WeakKeyDictionary()


class GvisorDurable:
    """Makes durable boxes with gVisor's kernel."""

    name = "gvisor"
    judges = False

    def __init__(self, facilities: Facilities) -> None:
        self._facilities = facilities

    def requirements(self) -> tuple[Requirement, ...]:
        """See DurableBackend."""
        return planning.requirements()

    async def hold_network(self) -> None:
        """See DurableBackend: its boxes join any."""

    async def launch_durable(self, request: DurableRequest) -> DurableBox:
        """See DurableBackend."""
        found = await self._from_stock(request)
        live = found.live if found is not None else await self._build(request)
        stream = found.stream if found is not None else None
        if request.on_report is not None:
            await seen(live, request.on_report, everything=False)
        return GvisorBox(request, live, self.enforcement(request), stream)

    async def _build(self, request: DurableRequest) -> GvisorLiveBox:
        confinement = replace(request.confinement, limits=own_limits(request.confinement.limits))
        image = images.find(self._facilities.gvisor.images, request.image) if request.image else None
        view = images.view(image) if image is not None else self._facilities.host_view()

        def plan_for(uid: int) -> LaunchPlan:
            base = jail_plan(confinement, view, host_uid=uid, host_gid=uid, memory_held_by_cgroup=True)
            if image is not None:
                base = images.shown(base, image)
            plan = durable_plan(
                base,
                workspace=request.workspace,
                home=HOME,
                user=request.user,
                files=agent_files(),
                view=request.view,
            )
            return _of_root(plan, view) if request.user == "root" else plan

        return await build(
            self._facilities,
            plan_for,
            confinement,
            network=request.network,
            capabilities=ROOT_CAPABILITIES if request.user == "root" else 0,
        )

    async def _from_stock(self, request: DurableRequest) -> Prepared | None:
        """A box that waited around a workspace of its own, which is put where the request wants an empty one."""
        spares = request.spares
        if request.network is not None or request.image is not None or spares is None or request.view is not None:
            return None
        with os.scandir(request.workspace) as entries:
            if any(entries):
                return None
        stock = stock_of(self._facilities, self._make)
        environment = frozenset(request.environment.items())
        found = stock.take(Kind(request.confinement, request.user, environment, spares.key, spares, request.rehearse))
        if found is None:
            return None
        try:
            there = os.stat(request.workspace)
            os.chmod(found.workspace, there.st_mode & 0o7777)
            if (there.st_uid, there.st_gid) != (os.geteuid(), os.getegid()):
                raise PermissionError("the box shows the files of another owner as its user's")
            spares.give(found.workspace, request.workspace)
        except (OSError, WorkspaceError):
            await found.destroy()
            return None
        found.live.start_kind = "made"
        return found

    async def _make(self, kind: Kind) -> Prepared:
        try:
            workspace = kind.spares.make()
        except (OSError, WorkspaceError) as error:
            raise IsolationError(f"no workspace can be made for a box in stock: {error}") from error
        request = DurableRequest("", workspace, kind.confinement, user=kind.user, environment=dict(kind.environment))
        live, stream = None, None
        try:
            live = await self._build(request)
            await _warm(live, request.environment)
            box = GvisorBox(request, live, Enforcement())
            stream = await box.open_stream(*_usual(request.environment))
            if kind.rehearse is not None:
                stream = await kind.rehearse(stream)
                live.count_anew()
        except BaseException as error:
            if stream is not None:
                await stream.close()
            if live is not None:
                await live.destroy()
            kind.spares.discard(workspace)
            if isinstance(error, OSError):
                raise IsolationError(f"no agent can be started in a gVisor box: {error}") from error
            raise
        return Prepared(live, stream, workspace, kind.spares)

    def enforcement(self, request: DurableRequest) -> Enforcement:
        """What holds what: the workspace lies on the host's disk, whose space its file system counts, or nothing."""
        held = self._facilities.held
        return Enforcement(
            filesystem=Layer.KERNEL,
            network=Layer.GATEWAY if request.network is not None else Layer.KERNEL,
            exec=Layer.NONE,
            memory=Layer.KERNEL if "memory" in held else Layer.NONE,
            pids=Layer.KERNEL,
            cpu=Layer.KERNEL if "cpu" in held else Layer.NONE,
            disk=Layer.KERNEL if request.disk_held else Layer.NONE,
        )

    async def leftovers(self) -> Sequence[Leftover]:
        """See DurableBackend: a box dies with its owner, and Facilities.open sweeps control groups."""
        return ()


async def _warm(live: GvisorLiveBox, environment: Mapping[str, str]) -> None:
    """Start the shells once, so that gVisor knows their files, and has the threads that a program takes, before
    somebody waits for his first command."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        for argv in _SHELLS:
            # A box may have no such shell.
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(await live.start(argv, environment, WORKSPACE, [nothing] * 3), _WARM_SECONDS)
    finally:
        os.close(nothing)
    live.count_anew()


def _of_root(plan: LaunchPlan, view: HostView) -> LaunchPlan:
    """The box of a root, who has an ordinary user beside it and makes others: it has the usual directories for that."""
    shown = {path for path, _ in view.top}
    passwd = f"agent:x:{GUEST_UID}:{GUEST_UID}:agent:/home/agent:/bin/sh\n"
    more = {"/etc/passwd": passwd, "/etc/group": f"agent:x:{GUEST_UID}:\nusers:x:100:\n"}
    return replace(
        plan,
        files=(*((path, text + more.get(path, "")) for path, text in plan.files), *_FOR_NEW_USERS),
        writable=(*plan.writable, *((path, mode) for path, mode in _ROOTS if f"/{path.split('/')[1]}" not in shown)),
    )


def own_limits(limits: Limits) -> Limits:
    """Those of the box: the kernel counts files in memory as memory, so that both together are what was asked for."""
    temporary = max(1, min(_TEMPORARY_MB, limits.memory_mb // 4))
    return replace(limits, memory_mb=limits.memory_mb - temporary, disk_mb=temporary, pids=limits.pids + _OWN_PROCESSES)
