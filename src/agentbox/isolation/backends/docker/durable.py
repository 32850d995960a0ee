# SPDX-License-Identifier: MIT
"""Durable containers: the in-box agent is the first process. When it ends, the container stops with everything in it,
and starts again with the files that it had."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from agentbox.errors import AgentboxError, BackendUnavailableError, EngineError, InternalError, IsolationError
from agentbox.isolation.backends.docker import sweeping
from agentbox.isolation.backends.docker.agent_stream import ContainerStream
from agentbox.isolation.backends.docker.box import kill_at_once, program_bytes
from agentbox.isolation.backends.docker.daemon import Daemon
from agentbox.isolation.backends.docker.durable_ground import DurableGround, clear
from agentbox.isolation.backends.docker.ground import FILTER, INIT
from agentbox.isolation.backends.docker.holding import hold
from agentbox.isolation.backends.docker.spec import (
    LABEL_KEEPER,
    LABEL_KIND,
    LABEL_NAME,
    LABEL_OWNER,
    LABEL_PLACE,
    LABEL_STARTED,
    ROOT_CAPABILITIES,
    Container,
    request_of,
)
from agentbox.isolation.backends.docker.users import users_of
from agentbox.isolation.durable import AgentStream, DurableBox, DurableRequest, Leftover, agent_files, gone
from agentbox.isolation.network import HeldNetwork
from agentbox.isolation.requirement import Requirement
from agentbox.linux.cgroup_owners import owner_name
from agentbox.linux.freezing import Freezer, of_group
from agentbox.models import Enforcement, Layer
from agentbox.records import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbox.isolation.facilities import Facilities

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MIB = 1 << 20
# What a container may write beside its workspace: memory.
_TEMPORARY_MB = 256
# The agent, and a keeper for each command, are processes of the box too.
_OWN_PROCESSES = 24
_GVISOR_MEMORY_MB = 128
_GVISOR_TASKS = 256
_GVISOR_TASKS_FOR_EACH = 8
_STOPPED_SECONDS = 20


class DockerDurable:
    """Makes durable containers on one runtime of the engine."""

    judges = False

    def __init__(self, facilities: Facilities, runtime: str | None = None) -> None:
        options = facilities.docker if runtime is None else replace(facilities.docker, runtime=runtime)
        self.name = "docker" if runtime is None else f"docker-{runtime}"
        self._facilities = facilities
        self._daemon = Daemon(options)

    def requirements(self) -> tuple[Requirement, ...]:
        """See DurableBackend."""
        return self._daemon.requirements()

    async def launch_durable(self, request: DurableRequest) -> DurableBox:
        """See DurableBackend."""
        daemon, facilities = self._daemon, self._facilities
        await daemon.engine.in_thread(daemon.info)
        if request.network is not None and not request.network.holder:
            raise InternalError("a container joins the network of a container alone")
        image = request.image or await daemon.default_image()
        uid, gid = (0, 0) if request.user == "root" else facilities.ids.take()
        ground = None
        name = f"agentbox-{request.name.removeprefix('agentbox-')}-{secrets.token_hex(4)}"
        try:
            ground = await asyncio.to_thread(
                DurableGround,
                request.workspace,
                uid,
                daemon=daemon.process(),
                gvisor=daemon.runs_gvisor,
                view=request.view,
            )
            listeners = self._listeners(request, ground)
            container = self._container(request, image, ground, (uid, gid))
            await daemon.engine.call("POST", "/containers/create", {"name": name}, request_of(container))
            if uid:
                await self._name_users(name, ground, uid, gid)
        except BaseException:
            with contextlib.suppress(AgentboxError):
                await daemon.engine.call("DELETE", f"/containers/{name}", {"force": "1", "v": "1"})
            if ground is not None:
                await asyncio.to_thread(ground.clear)
            facilities.ids.give_back(uid)
            raise
        return DockerDurableBox(request, daemon, name, ground, self.enforcement(request), facilities, uid, listeners)

    async def adopt_durable(self, request: DurableRequest) -> DockerDurableBox | None:
        """See Adopts."""
        daemon, engine = self._daemon, self._daemon.engine
        await engine.in_thread(daemon.info)
        labels = [f"{LABEL_NAME}={request.name}", f"{LABEL_KEEPER}={request.keeper}"]
        query = {"all": "1", "filters": json.dumps({"label": labels})}
        for listed in await engine.call("GET", "/containers/json", query):
            name = str(listed["Names"][0]).lstrip("/")
            facts = await engine.call("GET", f"/containers/{name}/json")
            uid = int(str(facts["Config"]["User"]).partition(":")[0] or 0)
            self._facilities.ids.reserve(uid)
            ground = DurableGround.found(str(listed["Labels"].get(LABEL_PLACE, "")), daemon.process())
            box = DockerDurableBox(request, daemon, name, ground, self.enforcement(request), self._facilities, uid, {})
            await box.settle()
            return box
        return None

    async def hold_network(self) -> HeldNetwork:
        """See DurableBackend."""
        return await hold(self._daemon)

    def _listeners(self, request: DurableRequest, ground: DurableGround) -> dict[str, socket.socket]:
        """The sockets of the network's UNIX paths, which the container shows there."""
        paths = request.network.unix_listeners if request.network is not None else ()
        if paths and self._daemon.runs_gvisor:
            raise BackendUnavailableError(
                f"unix:{paths[0]} cannot be opened to a container with gVisor's kernel",
                hint="use a `net:` rule with a host and a port, or backend jail",
            )
        return {path: ground.listen(path) for path in paths}

    def enforcement(self, request: DurableRequest) -> Enforcement:
        """What holds what: the workspace lies on the host's disk, whose space its file system counts, or nothing; root
        of a container may also fill the engine's."""
        held = Layer.KERNEL if self._daemon.limits_hold else Layer.NONE
        return Enforcement(
            filesystem=Layer.KERNEL,
            network=Layer.GATEWAY if request.network is not None else Layer.KERNEL,
            exec=Layer.NONE,
            memory=held,
            pids=Layer.KERNEL if self._daemon.runs_gvisor else held,
            cpu=held,
            disk=Layer.KERNEL if request.disk_held and request.user != "root" else Layer.NONE,
        )

    async def leftovers(self) -> Sequence[Leftover]:
        """See DurableBackend."""
        try:
            found = await sweeping.orphans(self._daemon.engine, ("sandbox", "net"))
            found += await sweeping.abandoned(self._daemon.engine)
        except AgentboxError:
            return ()
        return [ContainerLeft(self._daemon, container) for container in found]

    def _container(self, request: DurableRequest, image: str, ground: DurableGround, ids: tuple[int, int]) -> Container:
        limits, gvisor, root = request.confinement.limits, self._daemon.runs_gvisor, request.user == "root"
        temporary = max(1, min(_TEMPORARY_MB, limits.memory_mb // 4))
        options = f"rw,nosuid,nodev,exec,size={temporary}m,mode=1777"
        processes = limits.pids + _OWN_PROCESSES
        # The kernel counts an ordinary user's processes by id, of which each box has its own as long as we are root.
        counted = gvisor or (os.geteuid() == 0 and not root)
        return Container(
            image=image,
            command=(INIT, "become", FILTER),
            user=f"{ids[0]}:{ids[1]}",
            directory="/",
            labels={
                LABEL_OWNER: owner_name(),
                LABEL_STARTED: datetime.now(UTC).isoformat(timespec="seconds"),
                LABEL_KIND: sweeping.KEPT if request.keeper else "sandbox",
                LABEL_NAME: request.name,
                LABEL_PLACE: ground.directory,
                LABEL_KEEPER: request.keeper,
            },
            runtime=self._daemon.options.runtime if request.network is None else self._daemon.attached_runtime(),
            network=request.network.holder if request.network is not None else "",
            binds=(*ground.binds(), *(() if root else ground.users())),
            tmpfs=tuple((place, options) for place in ("/tmp", "/var/tmp", "/run", "/dev/shm")),  # noqa: S108
            capabilities=ROOT_CAPABILITIES if root else (),
            read_only=not root,
            memory_bytes=(limits.memory_mb + (_GVISOR_MEMORY_MB if gvisor else 0)) * _MIB,
            pids=processes * _GVISOR_TASKS_FOR_EACH + _GVISOR_TASKS if gvisor else processes,
            cpus=limits.cpus,
            processes=processes if counted else None,
        )

    async def _name_users(self, container: str, ground: DurableGround, uid: int, gid: int) -> None:
        """Give the box's user a name in the container's own lists."""
        engine = self._daemon.engine
        passwd, group = await engine.in_thread(lambda: users_of(engine, container, uid, gid))
        ground.write("passwd", passwd)
        ground.write("group", group)


class DockerDurableBox:
    """One durable container."""

    def __init__(
        self,
        request: DurableRequest,
        daemon: Daemon,
        container: str,
        ground: DurableGround,
        enforcement: Enforcement,
        facilities: Facilities,
        uid: int,
        listeners: Mapping[str, socket.socket],
    ) -> None:
        self.name = request.name
        self.workspace = request.workspace
        self.enforcement = enforcement
        self.container = container
        self._daemon = daemon
        self._engine = daemon.engine
        self._ground = ground
        self._environment = dict(request.environment)
        self._facilities = facilities
        self._uid = uid
        self.unix_listeners = listeners
        self._stream: ContainerStream | None = None
        self._gone = False
        self._freezer: Freezer | None = None

    async def open_stream(self, argv: Sequence[str], env: Mapping[str, str], user: str, cwd: str) -> AgentStream:
        """See DurableBox."""
        del user
        try:
            await self._stop()
            await self._look_for(argv[0])
            sock = await self._engine.in_thread(lambda: self._engine.attach(self.container))
            stream = self._stream = ContainerStream(sock)
            try:
                await self._engine.call("POST", f"/containers/{self.container}/start")
                full = {"PATH": _PATH, **self._environment, **env}
                await stream.write(program_bytes(argv, full, cwd or "/"))
            except BaseException:
                await stream.close()
                raise
        except (IsolationError, OSError) as error:
            if isinstance(error, FileNotFoundError) or await self.alive():
                raise
            raise gone(self.name, await self.why_gone()) from error
        return stream

    async def leave(self) -> None:
        """See AdoptedBox."""
        self._gone = True
        with contextlib.suppress(AgentboxError, TimeoutError):
            if self._stream is not None:
                await self._stream.close()
            await self.settle()
        self._engine.close()

    async def settle(self) -> None:
        """End what runs in it, whoever began it. Raises IsolationError, TimeoutError."""
        with contextlib.suppress(EngineError):
            # 409, 500: it is not paused, or not running.
            await self._engine.call("POST", f"/containers/{self.container}/unpause")
        await self._kill()

    async def _stop(self) -> None:
        """End what an earlier stream left running."""
        if self._stream is None:
            return
        await self._stream.close()
        await self._kill()

    async def _kill(self) -> None:
        with contextlib.suppress(EngineError):
            kill_at_once(await self._inspect())
        with contextlib.suppress(EngineError):
            # 409: it has ended already.
            await self._engine.call("POST", f"/containers/{self.container}/kill", {"signal": "KILL"})
        async with asyncio.timeout(_STOPPED_SECONDS):
            while (await self._inspect())["State"]["Running"]:  # noqa: ASYNC110 - the engine tells nobody
                await asyncio.sleep(0.01)

    async def _look_for(self, program: str) -> None:
        """Raise FileNotFoundError for a program that the image does not have."""
        if any(program == shown for _, shown in agent_files()):
            return
        try:
            await self._engine.call("HEAD", f"/containers/{self.container}/archive", {"path": program})
        except EngineError as error:
            if error.data["status"] == 404 and await self.alive():
                raise FileNotFoundError(2, f"the image has no {program}") from error
            raise

    async def _inspect(self) -> dict[str, Any]:
        found: dict[str, Any] = await self._engine.call("GET", f"/containers/{self.container}/json")
        return found

    async def alive(self) -> bool:
        """See DurableBox."""
        if self._gone:
            return False
        try:
            return not (await self._inspect())["State"].get("Dead", False)
        except AgentboxError:
            return False

    async def why_gone(self) -> str:
        """See DurableBox."""
        if self._gone:
            return "it was destroyed"
        try:
            state = (await self._inspect())["State"]
        except EngineError as error:
            return f"container {self.container} was removed" if error.data["status"] == 404 else error.message
        except AgentboxError as error:
            return error.message
        return "it had used up its memory" if state.get("OOMKilled") else str(state.get("Error", ""))

    async def pause(self) -> None:
        """See DurableBox."""
        if self._freezer is not None:
            await asyncio.to_thread(self._freezer.freeze)
            return
        try:
            await self._engine.call("POST", f"/containers/{self.container}/pause")
        except EngineError:
            # runc cannot freeze groups of version 1 on every kernel.
            first = int((await self._inspect())["State"]["Pid"])
            if self._daemon.process() is None or not await asyncio.to_thread(of_group, first):
                raise
            self._freezer = Freezer(f"paused-{self.name.removeprefix('agentbox-')}", lambda: of_group(first))
            await asyncio.to_thread(self._freezer.freeze)

    async def resume(self) -> None:
        """See DurableBox."""
        if self._freezer is None:
            await self._engine.call("POST", f"/containers/{self.container}/unpause")
        else:
            await asyncio.to_thread(self._freezer.thaw)

    async def destroy(self) -> None:
        """See DurableBox."""
        if self._gone:
            return
        self._gone = True
        if self._stream is not None:
            await self._stream.close()
        with contextlib.suppress(AgentboxError):
            await self._engine.call("DELETE", f"/containers/{self.container}", {"force": "1", "v": "1"})
        if self._freezer is not None:
            await asyncio.to_thread(self._freezer.close)
        for listener in self.unix_listeners.values():
            listener.close()
        await asyncio.to_thread(self._ground.clear)
        self._facilities.ids.give_back(self._uid)
        self._engine.close()


@dataclass(frozen=True, slots=True)
class ContainerLeft:
    """A durable container whose owner is dead, as the engine lists it."""

    daemon: Daemon
    listed: dict[str, Any]

    @property
    def name(self) -> str:
        """See Leftover."""
        return str(self.listed["Labels"].get(LABEL_NAME, ""))

    @property
    def what(self) -> str:
        """See Leftover."""
        name = str(self.listed["Names"][0]).lstrip("/")
        return f"container {name}, started {self.listed['Labels'].get(LABEL_STARTED, 'some time ago')}"

    async def remove(self) -> None:
        """See Leftover."""
        try:
            await self.daemon.engine.call("DELETE", f"/containers/{self.listed['Id']}", {"force": "1", "v": "1"})
        except EngineError as error:
            if error.data["status"] != 404:
                raise
        await asyncio.to_thread(clear, self.listed["Labels"].get(LABEL_PLACE, ""), self.daemon.process())
