# SPDX-License-Identifier: MIT
"""A sandbox whose box this process owns: it is made, kept, watched and removed here."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from agentbox.config import Settings, load
from agentbox.engine.way_out import Egress
from agentbox.errors import AgentboxError, NotFoundError, PolicyError, SandboxError, SandboxGoneError
from agentbox.isolation.durable import HOME, WORKSPACE, DurableBackend, DurableBox, DurableRequest, agent_commands
from agentbox.isolation.durable_registry import make_durable, preferred
from agentbox.linux.cgroup_owners import owner_name
from agentbox.models import Confinement, Denial, Enforcement
from agentbox.sandbox import tools
from agentbox.sandbox.bash_tool import BashSession
from agentbox.sandbox.command import Command
from agentbox.sandbox.confining import SandboxPolicy
from agentbox.sandbox.fetching import Fetched, copy_new, fetch
from agentbox.sandbox.files import Files
from agentbox.sandbox.grounds import Grounds, grounds
from agentbox.sandbox.holding import Holding
from agentbox.sandbox.lifetime import Lifetime
from agentbox.sandbox.link import AgentLink
from agentbox.sandbox.options import SandboxOptions
from agentbox.sandbox.recording import Recording
from agentbox.sandbox.rehearsing import rehearse
from agentbox.sandbox.results import NOT_RUNNING, ShellResult, rejected
from agentbox.sandbox.shell import Shell
from agentbox.sandbox.spool import Spool
from agentbox.sandbox.starting import Commands, StartFields
from agentbox.sandbox.state import Place, SandboxDirectories, check_name
from agentbox.sandbox.stateful import Stateful
from agentbox.sandbox.tracing import Tracing
from agentbox.workspace.volumes import Volumes, Workspace, close_volumes, open_volumes


class LocalSandbox(Stateful):
    """See AsyncSandbox. `editing` and `bash_session` belong to the tools for models."""

    def __init__(self, options: SandboxOptions) -> None:
        self.options = options
        self.files = Files(self, lambda op, args: self.recording.note(op, args))
        self.editing = asyncio.Lock()
        self.bash_session = BashSession(self)
        self._tracing = Tracing(self._expire)
        policy = SandboxPolicy(*options.policies) if options.policies else None
        self._holding = Holding(policy, lambda: self.recording)
        self._own_environment: dict[str, str] | None = None
        self._commands = Commands(
            self.link,
            self._make_spool,
            self._began,
            lambda facts: self.recording.command(facts),
            self._holding.passed,
        )
        self._shell = Shell(self._commands.start_in_shell, options.exec_timeout)
        self._lifetime = Lifetime(options.idle_timeout, options.max_lifetime, self._busy, self._expire)
        self._given: Settings | None = None
        self._settings: Settings | None = None
        self._grounds: Grounds | None = None
        self._backend: DurableBackend | None = None
        self._directories: SandboxDirectories | None = None
        self._place: Place | None = None
        self._box: DurableBox | None = None
        self._link: AgentLink | None = None
        self._changing = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._python_only = False
        self._expired = ""
        self._content: Path | None = None
        self.paused = False

    # ---- life

    async def start(self) -> None:
        """Make the box. Does nothing when it runs. Raises SandboxError; nothing is left then."""
        async with self._changing:
            if self._place is not None:
                return
            settings = self._given or load()[0]
            state = settings.resolved_state_dir()
            directories = self._make_directories(state)
            shared = grounds()
            try:
                await self._open_volumes(settings, directories)
                try:
                    facilities = await shared.enter(settings)
                except BaseException:
                    await asyncio.to_thread(close_volumes, state)
                    raise
                try:
                    name = self.options.backend
                    backend = make_durable(name, facilities) if name else preferred(facilities)
                    # In one: each turn of a thread costs more than either does.
                    place = await asyncio.to_thread(directories.sweep_and_make, backend.name, self.options.workspace)
                    for leftover in await backend.leftovers():
                        with contextlib.suppress(AgentboxError, OSError):
                            await leftover.remove()
                    self._settings, self._grounds = settings, shared
                    self._backend, self._directories, self._place = backend, directories, place
                    try:
                        begun = await self._tracing.begin(self.options, self._holding, settings, place)
                        await self._build()
                        await begun
                        self._tell_start()
                    except BaseException:
                        await self._raze()
                        await self._tracing.end()
                        self._place = None
                        await asyncio.to_thread(directories.remove, place)
                        raise
                except BaseException:
                    await shared.leave()
                    await asyncio.to_thread(close_volumes, state)
                    raise
            except (SandboxError, NotFoundError, PolicyError):
                raise
            except (AgentboxError, OSError) as error:
                raise SandboxError(
                    f"failed to start sandbox: {error}", hint=error.hint if isinstance(error, AgentboxError) else ""
                ) from error
            self._expired = ""
            self._lifetime.begin()

    async def stop(self) -> None:
        """End everything in the box and remove it, and its workspace where that is not a kept one. May be called
        twice."""
        async with self._changing:
            place, self._place = self._place, None
            if place is None:
                return
            self._lifetime.end()
            await self._raze()
            await self._tracing.end()
            self._commands.close()
            if self._directories is not None:
                await asyncio.to_thread(self._directories.remove, place)
            if self._grounds is not None and self._settings is not None:
                await self._grounds.leave()
                await asyncio.to_thread(close_volumes, self._settings.resolved_state_dir())

    async def reset(self) -> None:
        """The box anew, around the same workspace: everything that ran in it is ended. Raises SandboxError."""
        async with self._changing:
            if self._place is None:
                raise SandboxError(NOT_RUNNING, hint="start it first")
            self.record("reset", {})
            await self._raze()
            await self._rebuild()

    async def _rebuild(self) -> None:
        try:
            await self._build()
            self._tell_start()
        except (AgentboxError, OSError) as error:
            raise SandboxError(f"failed to start sandbox: {error}", hint=getattr(error, "hint", "")) from error
        self._expired = ""
        self._lifetime.begin()

    async def _build(self) -> None:
        assert self._backend is not None
        assert self._place is not None
        assert self._directories is not None
        files, volumes = self._place.files, self._directories.volumes
        request = DurableRequest(
            name=self._place.name,
            workspace=str(self._place.workspace),
            confinement=Confinement(self.options.limits),
            user=self.options.user,
            image=self.options.image,
            environment=self._base_environment(),
            owner=owner_name(),
            disk_held=files is not None and files.held,
            spares=volumes.spares(self._limit_bytes) if volumes is not None and self._place.is_fresh else None,
            rehearse=rehearse,
        )
        request = await self._holding.apply(request, self._backend, self._egress)
        self._box = await self._launch(self._backend, request)
        await self._holding.serve(self._box, self._backend)
        self._link = await self._open_link(self._box)

    async def _raze(self) -> None:
        link, self._link = self._link, None
        box, self._box = self._box, None
        paused, self.paused = self.paused, False
        if paused and box is not None:
            # What is stopped may not end.
            with contextlib.suppress(AgentboxError, OSError):
                await box.resume()
        if link is not None:
            await link.close()
        if box is not None:
            await box.destroy()
        await self._holding.close()
        self._shell.forget()
        self.bash_session.forget()

    def _busy(self) -> bool:
        # What was paused is meant to wait.
        return self.paused or self._commands.busy()

    def _base_environment(self) -> dict[str, str]:
        user = self.options.user
        if self._own_environment is None:
            passed = self._holding.passed(self.options.env)
            self._own_environment = {name: value for name, value in passed.items() if value is not None}
        return {"HOME": HOME, "USER": user, "LOGNAME": user, "LANG": "C.UTF-8", **self._own_environment}

    def _egress(self) -> Egress:
        assert self._grounds is not None
        assert self._settings is not None
        return self._grounds.egress(self._settings)

    async def _open_volumes(self, settings: Settings, directories: SandboxDirectories) -> None:
        size = settings.workspace_volumes_mb << 20
        state, choice = settings.resolved_state_dir(), settings.workspace_volumes
        volumes = await asyncio.to_thread(open_volumes, state, choice, size)
        if settings.snapshot_ttl_seconds:
            await asyncio.to_thread(volumes.snapshots.expire, settings.snapshot_ttl_seconds)
        directories.volumes = volumes
        directories.make_files = lambda name: self._make_workspace(volumes, name)

    # ---- what another owner of boxes does otherwise

    def _make_directories(self, state: Path) -> SandboxDirectories:
        """Where its directories are made."""
        return SandboxDirectories(state)

    def _make_workspace(self, volumes: Volumes, name: str) -> Workspace:
        """What /work is, where that is no directory of the host; `name` is the sandbox's. Called in a thread. Raises
        SandboxError, WorkspaceError, NotFoundError."""
        content, self._content = self._content, None
        if content is None and self.options.snapshot is not None:
            content = self._content_of(volumes, self.options.snapshot)
        if self.options.workspace is None:
            return volumes.new(name, self._limit_bytes, content)
        return volumes.named(check_name(os.fspath(self.options.workspace)), self._limit_bytes, content=content)

    async def _launch(self, backend: DurableBackend, request: DurableRequest) -> DurableBox:
        """The box itself."""
        return await backend.launch_durable(request)

    def _make_spool(self) -> Spool:
        """A place for one stream of a command's output."""
        assert self._place is not None
        return Spool(self._place.spools, self.options.limits.max_output_bytes)

    def _began(self, command: Command) -> None:
        """A command has started."""

    async def _expire(self, why: str) -> None:
        async with self._changing:
            if self._place is not None:
                self._expired = why
                self.record("gone", {"why": why})
                await self._raze()

    # ---- its trace

    def record(self, op: str, args: Mapping[str, Any]) -> None:
        """Write `sandbox.OP` into the trace, where there is one. Does not wait and does not raise; `args` are not
        changed any more."""
        self._tracing.record(op, args)

    @property
    def recording(self) -> Recording:
        """Of what is done now."""
        return self._tracing.recording

    def _tell_start(self) -> None:
        assert self._box is not None
        assert self._place is not None
        environment = self._base_environment()
        kept, warnings = self._place.kept, self.warnings
        self._tracing.tell_start(self.options, self.backend, self._box.enforcement, environment, warnings, kept=kept)

    # ---- the agent

    async def _open_link(self, box: DurableBox) -> AgentLink:
        reason: Exception | None = None
        for argv in agent_commands(python_only=self._python_only):
            try:
                return await AgentLink.open(await box.open_stream(argv, self._base_environment(), "", WORKSPACE))
            except (OSError, SandboxError) as error:
                reason = reason or error
        raise SandboxError(f"no agent can be started in the box: {reason}", hint="reset the sandbox")

    async def link(self) -> AgentLink:
        """The stream to the agent, which is started again when something in the box ended it.

        Raises SandboxError when the sandbox is not running, SandboxGoneError when its box is gone.
        """
        self._lifetime.touch()
        self._judge_paused()
        link = self._link
        if link is not None and link.lost is None:
            return link
        if self._place is None:
            raise SandboxError(NOT_RUNNING, hint="start it first")
        async with self._opening:
            if self._link is not None and self._link.lost is None:
                return self._link
            box = self._box
            if box is None:
                raise self._gone(self._expired)
            if self._link is not None:
                await self._link.close()
            if not await box.alive():
                raise self._gone(await box.why_gone())
            try:
                self._link = await self._open_link(box)
            except AgentboxError as error:
                if not await box.alive():
                    raise self._gone(await box.why_gone()) from error
                raise
            return self._link

    def _gone(self, why: str) -> SandboxGoneError:
        return SandboxGoneError(
            f"sandbox is gone{f': {why}' if why else ''}",
            hint="reset builds it anew around its workspace, which is kept",
        )

    # ---- commands

    async def exec(
        self, command: str | Sequence[str], *, timeout: float | None, wait: float | None, **how: Unpack[StartFields]
    ) -> Command:
        """Run a command; see AsyncSandbox.exec."""
        started = await self._commands.run(command, timeout=timeout, wait=wait, **how)
        self._lifetime.touch()
        return started

    def exec_here(
        self, command: str | Sequence[str], *, timeout: float | None, wait: float | None, **how: Unpack[StartFields]
    ) -> None:
        """Nothing: its loop has the box."""

    @property
    def commands(self) -> tuple[Command, ...]:
        """Those that run, and the last that have ended."""
        return self._commands.known

    async def find_commands(self) -> tuple[Command, ...]:
        """The same: nobody else starts any."""
        return self.commands

    # ---- the shell tools

    async def shell(self, tool: str, *arguments: Any) -> ShellResult:
        """The answer of the shell tool "exec", "wait" or "kill"."""
        if self._place is None:
            return rejected(NOT_RUNNING)
        self._lifetime.touch()
        if self._box is None:
            return rejected(str(self._gone(self._expired)))
        if self.paused:
            return rejected("the sandbox is paused: resume it first")
        answers: Mapping[str, Callable[..., Awaitable[ShellResult]]] = {
            "exec": self._shell.execute,
            "wait": self._shell.wait,
            "kill": self._shell.kill,
        }
        return await answers[tool](*arguments)

    async def dispatch(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Answer a model's call of one of its tools; see tools.dispatch."""
        answer = await tools.dispatch(self, name, arguments)
        self.recording.note("tool.call", {"tool": name, "characters": len(answer)})
        return answer

    async def fetch_workspace(self, to: str | os.PathLike[str]) -> Fetched:
        """Copy the workspace's files and directories to a new directory of the host, also when the box is gone. Links
        are left out, not followed. Raises OSError, WorkspaceError, SandboxError."""
        if self._place is None:
            raise SandboxError(NOT_RUNNING, hint="start it first; a workspace that is kept is a directory of the host")
        return await asyncio.to_thread(fetch, str(self._place.workspace), os.fspath(to))

    async def fetch_trace(self, to: str | os.PathLike[str]) -> int:
        """Copy its trace to a new file; how many bytes that are."""
        path = self.recording.path
        if path is None:
            raise SandboxError("this sandbox has no trace", hint="give it one with `trace=True`")
        return await asyncio.to_thread(copy_new, path, os.fspath(to))

    async def refresh(self) -> None:
        """Nothing: everything is known here."""

    # ---- what there is to know

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped; its box may be gone all the same."""
        return self._place is not None

    @property
    def container_id(self) -> str | None:
        """The name of the box, None when it is not running."""
        return self._place.name if self._place is not None else None

    @property
    def backend(self) -> str:
        """The backend's name; of one that is not running, as it was asked for."""
        return self._backend.name if self._backend is not None else self.options.backend or "auto"

    @property
    def workspace(self) -> str | None:
        """The directory of the host that is /work inside, None when it is not running."""
        return str(self._place.workspace) if self._place is not None else None

    @property
    def enforcement(self) -> Enforcement:
        """Which layer holds what; nothing for a box that is not there."""
        return self._box.enforcement if self._box is not None else Enforcement()

    @property
    def denials(self) -> tuple[Denial, ...]:
        """What was refused, the last thousand. Empty without a policy."""
        return self.recording.denials

    @property
    def policy_sha256(self) -> str | None:
        """The hash of what its policy says, None without one."""
        return self._holding.policy_sha256 if self._holding.present else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the policy holds in part only."""
        return self._holding.warnings

    @property
    def trace(self) -> str | None:
        """The file of its trace, None where there is none."""
        return self.recording.path
