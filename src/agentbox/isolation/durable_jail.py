# SPDX-License-Identifier: MIT
"""Durable boxes of the jail: one box without a program of its own, in which the agent is started, again if it must be.

The box dies with its owner: its init ends when the owner's end of a socket closes. The workspace is the host's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping, Sequence

from agentbox.isolation import host
from agentbox.isolation.backend import LiveBox, cgroup_limits
from agentbox.isolation.boxes import Box, CommandExit
from agentbox.isolation.durable import (
    AGENT,
    HOME,
    AgentStream,
    DurableBox,
    DurableRequest,
    Leftover,
    PipeStream,
    agent_files,
    gone,
)
from agentbox.isolation.facilities import Facilities
from agentbox.isolation.plan import DURABLE_PROGRAMS, attached_plan, durable_plan, jail_plan
from agentbox.isolation.requirement import Requirement
from agentbox.linux.cgroups import Cgroup
from agentbox.linux.freezing import Freezer
from agentbox.models import Confinement, Enforcement, Layer, ProgramRule
from agentbox.records import replace

_PATH = f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{DURABLE_PROGRAMS}"
# What a box may write beside its workspace: /tmp and /dev/shm, which are memory.
_TEMPORARY_MB = 256
# The agent, and a keeper for each command, are processes of the box too.
_OWN_PROCESSES = 24
# The static one alone: by a rule for an interpreter, whatever that interpreter starts would come with it.
_AGENT_RULE = ProgramRule(False, AGENT, (AGENT,), (), "the agent of the sandbox")


class JailDurable:
    """Makes durable boxes out of the kernel's own mechanisms."""

    name = "jail"
    judges = True

    def __init__(self, facilities: Facilities) -> None:
        self._facilities = facilities

    def requirements(self) -> tuple[Requirement, ...]:
        """See DurableBackend."""
        return host.kernel_requirements()

    async def hold_network(self) -> None:
        """See DurableBackend: its boxes join any."""

    async def launch_durable(self, request: DurableRequest) -> DurableBox:
        """See DurableBackend."""
        facilities = self._facilities
        limits = request.confinement.limits
        temporary = max(1, min(_TEMPORARY_MB, limits.memory_mb // 4))
        # The kernel counts files in memory as memory, so that both together are what was asked for.
        own = replace(
            limits,
            memory_mb=limits.memory_mb - temporary,
            disk_mb=temporary,
            pids=limits.pids + _OWN_PROCESSES,
        )
        confinement = replace(request.confinement, limits=own)
        uid, gid = facilities.take_ids()
        try:
            base = jail_plan(
                confinement,
                facilities.host_view(),
                host_uid=uid,
                host_gid=gid,
                memory_held_by_cgroup="memory" in facilities.held,
            )
            plan = durable_plan(
                base,
                workspace=request.workspace,
                home=HOME,
                user=request.user,
                files=agent_files(),
                view=request.view,
                programs=None if request.programs is None else tuple((*one, _AGENT_RULE) for one in request.programs),
            )
            network_fds: tuple[int, ...] = ()
            if request.network is not None:
                plan = attached_plan(
                    plan,
                    name_server=request.network.name_server,
                    through_user_namespace=request.network.user_namespace_fd is not None,
                    unix_listeners=request.network.unix_listeners,
                )
                network_fds = request.network.descriptors
            cgroup = _control_group(facilities, confinement)
            try:
                box = await facilities.launcher.build(
                    plan, cgroup.attach_fds() if cgroup else (), request.on_report, network_fds
                )
            except BaseException:
                if cgroup is not None:
                    cgroup.destroy()
                raise
        except BaseException:
            facilities.ids.give_back(uid)
            raise
        live = LiveBox(box, confinement, cgroup, lambda: facilities.ids.give_back(uid))
        return JailBox(request, box, live, self.enforcement(request))

    def enforcement(self, request: DurableRequest) -> Enforcement:
        """What holds what: the workspace lies on the host's disk, whose space its file system counts, or nothing."""
        held = self._facilities.held
        return Enforcement(
            filesystem=Layer.KERNEL,
            network=Layer.GATEWAY if request.network is not None else Layer.KERNEL,
            exec=Layer.KERNEL if request.programs is not None else Layer.NONE,
            memory=Layer.KERNEL if "memory" in held else Layer.SUPERVISOR,
            pids=Layer.KERNEL,
            cpu=Layer.KERNEL if "cpu" in held else Layer.NONE,
            disk=Layer.KERNEL if request.disk_held else Layer.NONE,
        )

    async def leftovers(self) -> Sequence[Leftover]:
        """See DurableBackend: a box of the jail dies with its owner, and Facilities.open sweeps control groups."""
        return ()


def _control_group(facilities: Facilities, confinement: Confinement) -> Cgroup | None:
    if facilities.cgroups is None:
        return None
    return facilities.cgroups.create(os.urandom(8).hex(), cgroup_limits(confinement.limits))


def _heard(ended: asyncio.Future[CommandExit]) -> None:
    if not ended.cancelled():
        ended.exception()


class JailBox:
    """A durable box of the jail."""

    def __init__(self, request: DurableRequest, box: Box, live: LiveBox, enforcement: Enforcement) -> None:
        self.name = request.name
        self.workspace = request.workspace
        self.enforcement = enforcement
        self.live = live
        self._box = box
        self._environment = dict(request.environment)
        self._streams = 0
        self._freezer: Freezer | None = None

    @property
    def unix_listeners(self) -> Mapping[str, socket.socket]:
        """See DurableBox."""
        return self.live.unix_listeners

    async def open_stream(self, argv: Sequence[str], env: Mapping[str, str], user: str, cwd: str) -> AgentStream:
        """See DurableBox."""
        del user
        ours_in, ours_out, theirs = -1, -1, []
        try:
            if self._streams:
                await self._box.sweep()
            self._streams += 1
            guest_in, ours_out = os.pipe2(os.O_CLOEXEC)
            theirs.append(guest_in)
            ours_in, guest_out = os.pipe2(os.O_CLOEXEC)
            theirs += [guest_out, os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)]
            full = {"PATH": _PATH, **self._environment, **env}
            ended = await self._box.start(argv, full, cwd or "/", theirs)
            # How it ended is told by its stream.
            ended.add_done_callback(_heard)
            stream = PipeStream(ours_in, ours_out)
        except BaseException as error:
            for fd in (ours_in, ours_out):
                if fd >= 0:
                    os.close(fd)
            if isinstance(error, OSError) and not await self.alive():
                raise gone(self.name, await self.why_gone()) from error
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        return stream

    async def alive(self) -> bool:
        """See DurableBox."""
        return self._box.alive

    async def why_gone(self) -> str:
        """See DurableBox."""
        with contextlib.suppress(OSError):
            if self.live.oom_killed():
                return "it had used up its memory"
        return ""

    async def pause(self) -> None:
        """See DurableBox."""
        if self._freezer is None:
            self._freezer = self.live.freezer(f"paused-{self.name.removeprefix('agentbox-')}")
        await asyncio.to_thread(self._freezer.freeze)

    async def resume(self) -> None:
        """See DurableBox."""
        if self._freezer is not None:
            await asyncio.to_thread(self._freezer.thaw)

    async def destroy(self) -> None:
        """See DurableBox."""
        await self.live.destroy()
        if self._freezer is not None:
            await asyncio.to_thread(self._freezer.close)
