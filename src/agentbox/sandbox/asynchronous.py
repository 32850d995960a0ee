# SPDX-License-Identifier: MIT
"""A durable sandbox: one box around a workspace, any number of commands in it, until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import posixpath
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from agentbox.config import Settings, load
from agentbox.errors import AgentboxError, SandboxError, SandboxGoneError
from agentbox.isolation.durable import HOME, WORKSPACE, DurableBackend, DurableBox, DurableRequest, agent_commands
from agentbox.isolation.durable_registry import make_durable, preferred
from agentbox.linux.cgroup_owners import owner_name
from agentbox.models import Confinement, Enforcement, Limits
from agentbox.sandbox import frames, tools
from agentbox.sandbox.bash_tool import BashSession
from agentbox.sandbox.command import Command
from agentbox.sandbox.fetching import Fetched, fetch
from agentbox.sandbox.files import Files
from agentbox.sandbox.frames import StartFlag
from agentbox.sandbox.grounds import Grounds, grounds
from agentbox.sandbox.lifetime import Lifetime
from agentbox.sandbox.link import AgentLink
from agentbox.sandbox.results import NOT_RUNNING, ShellResult, rejected
from agentbox.sandbox.shell import Shell
from agentbox.sandbox.sizes import megabytes, processors
from agentbox.sandbox.spool import DEFAULT_BYTES, Spool
from agentbox.sandbox.state import Place, SandboxDirectories
from agentbox.sandbox.way_out import SandboxPolicy, read_policy

DEFAULT_IMAGE = "python:3.12"
# Ended commands whose output is still kept.
_KEPT_COMMANDS = 64
_NO_TIMEOUT_SECONDS = 366 * 86400.0
_SHELLS = ("bash", "sh")


class AsyncSandbox:
    """A durable box for one agent. Use it with `async with`, or `start` and `stop`.

    `image` is for backends that have images (DEFAULT_IMAGE there). `memory` ("2g"), `cpus` ("2") and `pids_limit` hold
    for everything in it together. `exec_timeout` is for how many seconds the shell tools wait when their call does not
    say. `backend` is one of isolation.durable_registry.DURABLE; by default the first there is that has a kernel of its
    own. `policy` is the text of a policy with `net:` rules. `workspace` is None for one that goes with the sandbox, the
    name of one that is kept, or a directory of the host; it is /work and /root. `env` are variables of every command.
    `user` is "agent", or "root" of the box. After `idle_timeout` seconds without a call and without a running command,
    and `max_lifetime` seconds after its start, the box ends. `spool_bytes` is how much of one command's output is kept.
    """

    def __init__(
        self,
        image: str | None = None,
        memory: str | int = "2g",
        cpus: str | float = "2",
        pids_limit: int = 512,
        exec_timeout: float = 60,
        *,
        backend: str | None = None,
        policy: str | None = None,
        workspace: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        user: str = "agent",
        disk: str | int = "1g",
        idle_timeout: float | None = None,
        max_lifetime: float | None = None,
        spool_bytes: int = DEFAULT_BYTES,
    ) -> None:
        if user not in ("agent", "root"):
            raise SandboxError(f"user={user!r} is not known in a sandbox", hint='use "agent" or "root"')
        if pids_limit < 8:
            raise SandboxError(f"pids_limit={pids_limit} is too few", hint="use 8 or more")
        self.limits = Limits(
            timeout_seconds=_NO_TIMEOUT_SECONDS,
            memory_mb=megabytes(memory, "memory"),
            cpus=processors(cpus),
            pids=pids_limit,
            disk_mb=megabytes(disk, "disk"),
            max_output_bytes=spool_bytes,
        )
        self.image = image
        self.exec_timeout = exec_timeout
        self.user = user
        self.files = Files(self)
        self._backend_name = backend
        self._policy: SandboxPolicy | None = read_policy(policy) if policy is not None else None
        self._workspace = workspace
        self._env = dict(env or {})
        self._spool_bytes = spool_bytes
        self.editing = asyncio.Lock()
        self.bash_session = BashSession(self)
        self._shell = Shell(self._start_for_shell, exec_timeout)
        self._lifetime = Lifetime(idle_timeout, max_lifetime, self._busy, self._expire)
        self._settings: Settings | None = None
        self._grounds: Grounds | None = None
        self._backend: DurableBackend | None = None
        self._directories: SandboxDirectories | None = None
        self._place: Place | None = None
        self._box: DurableBox | None = None
        self._link: AgentLink | None = None
        self._changing = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._commands: dict[int, Command] = {}
        self._python_only = False
        self._expired = ""

    # ---- life

    async def __aenter__(self) -> AsyncSandbox:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Make the box. Does nothing when it runs. Raises SandboxError; nothing is left then."""
        async with self._changing:
            if self._place is not None:
                return
            settings, _ = load()
            directories = SandboxDirectories(settings.resolved_state_dir())
            shared = grounds()
            try:
                facilities = await shared.enter(settings)
                try:
                    name = self._backend_name
                    backend = make_durable(name, facilities) if name else preferred(facilities)
                    await asyncio.to_thread(directories.sweep)
                    for leftover in await backend.leftovers():
                        with contextlib.suppress(AgentboxError, OSError):
                            await leftover.remove()
                    place = await asyncio.to_thread(directories.make, backend.name, self._workspace)
                    self._settings, self._grounds = settings, shared
                    self._backend, self._directories, self._place = backend, directories, place
                    try:
                        await self._build()
                    except BaseException:
                        await self._raze()
                        self._place = None
                        await asyncio.to_thread(directories.remove, place)
                        raise
                except BaseException:
                    await shared.leave()
                    raise
            except SandboxError:
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
            for command in self._commands.values():
                command.close()
            self._commands.clear()
            if self._directories is not None:
                await asyncio.to_thread(self._directories.remove, place)
            if self._grounds is not None:
                await self._grounds.leave()

    async def reset(self) -> None:
        """The box anew, around the same workspace: everything that ran in it is ended. Raises SandboxError."""
        async with self._changing:
            if self._place is None:
                raise SandboxError(NOT_RUNNING, hint="start it first")
            await self._raze()
            try:
                await self._build()
            except (AgentboxError, OSError) as error:
                raise SandboxError(f"failed to start sandbox: {error}", hint=getattr(error, "hint", "")) from error
            self._expired = ""
            self._lifetime.begin()

    async def _build(self) -> None:
        assert self._backend is not None
        assert self._place is not None
        request = DurableRequest(
            name=self._place.name,
            workspace=str(self._place.workspace),
            confinement=Confinement(self.limits),
            user=self.user,
            image=self.image,
            environment=self._base_environment(),
            owner=owner_name(),
        )
        if self._policy is not None:
            assert self._grounds is not None
            assert self._settings is not None
            request = await self._policy.attach(request, self._backend, self._grounds.egress(self._settings))
        self._box = await self._backend.launch_durable(request)
        if self._policy is not None:
            await self._policy.serve(self._box)
        self._link = await self._open_link(self._box)

    async def _raze(self) -> None:
        link, self._link = self._link, None
        box, self._box = self._box, None
        if link is not None:
            await link.close()
        if box is not None:
            await box.destroy()
        if self._policy is not None:
            await self._policy.close()
        self._shell.forget()
        self.bash_session.forget()

    def _base_environment(self) -> dict[str, str]:
        return {"HOME": HOME, "USER": self.user, "LOGNAME": self.user, "LANG": "C.UTF-8", **self._env}

    def _busy(self) -> bool:
        return any(command.running for command in self._commands.values())

    async def _expire(self, why: str) -> None:
        async with self._changing:
            if self._place is not None:
                self._expired = why
                await self._raze()

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
        self,
        command: str | Sequence[str],
        *,
        timeout: float | None = None,
        wait: float | None = None,
        stdin: bytes | bool = False,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        user: str | None = None,
        merged: bool = True,
        terminal: tuple[int, int] | None = None,
    ) -> Command:
        """Run a command: text for the box's shell, or a list of words. Any number may run at once.

        `timeout` ends it after so many seconds; `wait` bounds this call (None: until it has ended), and ends nothing.
        `stdin` is what it reads; True keeps its input open for `Command.send`. `cwd` is relative to /work. `env` is set
        over the sandbox's variables, None takes one out. With `merged` False stderr is a spool of its own. `terminal`
        gives it one of so many (rows, columns).

        Raises OSError with the reason when it cannot be started, SandboxError, SandboxGoneError, ValueError.
        """
        if isinstance(command, str):
            started = await self._start_in_shell(
                command, stdin=stdin, cwd=cwd, env=env, user=user, merged=merged, terminal=terminal
            )
        else:
            started = await self._start(
                list(command), stdin=stdin, cwd=cwd, env=env, user=user, merged=merged, terminal=terminal
            )
        if timeout is not None:
            started.end_after(timeout)
        if not isinstance(stdin, bool):
            with contextlib.suppress(SandboxError):
                await started.send(stdin)
            started.close_stdin()
        if wait is None or wait > 0:
            await started.wait(wait)
            self._lifetime.touch()
        return started

    @property
    def commands(self) -> tuple[Command, ...]:
        """Those that run, and the last that have ended."""
        return tuple(self._commands.values())

    async def _start_for_shell(self, command: str) -> Command:
        return await self._start_in_shell(command)

    async def _start_in_shell(
        self,
        command: str,
        *,
        stdin: bytes | bool = False,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        user: str | None = None,
        merged: bool = True,
        terminal: tuple[int, int] | None = None,
    ) -> Command:
        for shell in _SHELLS:
            try:
                return await self._start(
                    [shell, "-c", command],
                    stdin=stdin,
                    cwd=cwd,
                    env=env,
                    user=user,
                    merged=merged,
                    terminal=terminal,
                )
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EACCES, errno.ENOEXEC) or error.filename != shell:
                    raise
        raise FileNotFoundError(errno.ENOENT, "no shell is left in the box; reset the sandbox", " or ".join(_SHELLS))

    async def _start(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | bool = False,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        user: str | None = None,
        merged: bool = True,
        terminal: tuple[int, int] | None = None,
    ) -> Command:
        if not argv:
            raise ValueError("an empty command")
        link = await self.link()
        assert self._place is not None
        spools = self._place.spools
        flags = StartFlag.NONE
        if stdin is not False:
            flags |= StartFlag.STDIN
        if terminal is not None:
            flags |= StartFlag.TERMINAL | StartFlag.MERGED
        elif merged:
            flags |= StartFlag.MERGED
        command = Command(
            argv,
            Spool(spools, self._spool_bytes),
            None if flags & StartFlag.MERGED else Spool(spools, self._spool_bytes),
        )
        environment: dict[str, str | None] = dict(env or {})
        if terminal is not None:
            environment.setdefault("TERM", "xterm-256color")
        number = command.begin(link)
        try:
            link.send(
                frames.start(
                    number,
                    argv,
                    flags=flags,
                    user=user or "",
                    directory=posixpath.normpath(posixpath.join(WORKSPACE, cwd or "")),
                    environment=environment,
                    size=terminal or (0, 0),
                )
            )
            self._keep(command)
            await command.begun()
        except BaseException:
            self._commands.pop(id(command), None)
            if command.over or command.pid is None:
                link.forget(number)
            command.close()
            raise
        return command

    def _keep(self, command: Command) -> None:
        self._commands[id(command)] = command
        if len(self._commands) > _KEPT_COMMANDS:
            for key, old in list(self._commands.items()):
                if old.over:
                    del self._commands[key]
                    if len(self._commands) <= _KEPT_COMMANDS:
                        break

    # ---- the shell tools

    async def shell(self, tool: str, *arguments: object) -> ShellResult:
        """The answer of the shell tool "exec", "wait" or "kill"."""
        if self._place is None:
            return rejected(NOT_RUNNING)
        self._lifetime.touch()
        if self._box is None:
            return rejected(str(self._gone(self._expired)))
        return await {"exec": self._shell.execute, "wait": self._shell.wait, "kill": self._shell.kill}[tool](*arguments)  # type: ignore[operator,no-any-return]

    async def shell_exec(self, command: str, timeout: float | None = None) -> str:
        """Run a shell command and wait for it; `timeout` seconds (default: exec_timeout) only stop the waiting."""
        return (await self.shell("exec", command, timeout)).render()

    async def shell_wait(self, timeout: float | None = None) -> str:
        """Wait on for the command that runs."""
        return (await self.shell("wait", timeout)).render()

    async def shell_kill(self) -> str:
        """End the command that runs, with everything that it started."""
        return (await self.shell("kill")).render()

    async def dispatch(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Answer a model's call of one of its tools; see tools.dispatch."""
        return await tools.dispatch(self, name, arguments)

    async def fetch_workspace(self, to: str | os.PathLike[str]) -> Fetched:
        """Copy the workspace's files and directories to a new directory of the host, also when the box is gone. Links
        are left out, not followed. Raises OSError, WorkspaceError, SandboxError."""
        if self._place is None:
            raise SandboxError(NOT_RUNNING, hint="start it first; a workspace that is kept is a directory of the host")
        return await asyncio.to_thread(fetch, str(self._place.workspace), os.fspath(to))

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
        return self._backend.name if self._backend is not None else self._backend_name or "auto"

    @property
    def workspace(self) -> str | None:
        """The directory of the host that is /work inside, None when it is not running."""
        return str(self._place.workspace) if self._place is not None else None

    @property
    def enforcement(self) -> Enforcement:
        """Which layer holds what; nothing for a box that is not there."""
        return self._box.enforcement if self._box is not None else Enforcement()

    @property
    def denials(self) -> tuple[tuple[str, str], ...]:
        """What the gateway refused, the last thousand: target and reason. Empty without a policy."""
        return tuple(self._policy.denials) if self._policy is not None else ()
