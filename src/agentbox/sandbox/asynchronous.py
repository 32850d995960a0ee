# SPDX-License-Identifier: MIT
"""A durable sandbox: one box around a workspace, any number of commands in it, until it is stopped."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from agentbox.config import server_of_clients
from agentbox.errors import NotFoundError, SandboxError
from agentbox.models import Denial, Enforcement, Limits
from agentbox.sandbox.core import SandboxCommand, SandboxCore, SandboxFiles
from agentbox.sandbox.fetching import Fetched
from agentbox.sandbox.options import DEFAULT_IMAGE, SandboxOptions, read_options
from agentbox.sandbox.results import ShellResult
from agentbox.sandbox.spool import DEFAULT_BYTES
from agentbox.workspace.volume_snapshots import WorkspaceSnapshot


class AsyncSandbox:
    """A durable box for one agent. Use it with `async with`, or `start` and `stop`.

    `image` is for backends that have images (DEFAULT_IMAGE there). `memory` ("2g"), `cpus` ("2") and `pids_limit` hold
    for everything in it together. `exec_timeout` is for how many seconds the shell tools wait when their call does not
    say. `backend` is one of isolation.durable_registry.DURABLE; by default the first there is that has a kernel of its
    own. `policy` is the text of a policy. `workspace` is None for one that goes with the sandbox, the
    name of one that is kept, or a directory of the host; it is /work and /root. `env` are variables of every command.
    `user` is "agent", or "root" of the box. After `idle_timeout` seconds without a call and without a running command,
    and `max_lifetime` seconds after its start, the box ends. `spool_bytes` is how much of one command's output is kept.
    `trace` is the path of its trace, True for one that is kept in the state directory, False for none; by default it is
    kept where the workspace is. `snapshot` is the id of what a new workspace begins with.

    With `url` (default: AGENTBOX_URL; "" for a box of this process all the same) the box is that server's, and the rest
    is the same. `api_key` (default: AGENTBOX_TOKEN) says who asks. `keep` lets it stay on the server when it is
    stopped; `attach` finds it again.
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
        trace: bool | str | os.PathLike[str] | None = None,
        snapshot: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
        keep: bool = False,
        sandbox_id: str | None = None,
    ) -> None:
        self.options: SandboxOptions = read_options(
            image=image,
            memory=memory,
            cpus=cpus,
            pids_limit=pids_limit,
            exec_timeout=exec_timeout,
            backend=backend,
            policy=policy,
            workspace=workspace,
            env=env,
            user=user,
            disk=disk,
            idle_timeout=idle_timeout,
            max_lifetime=max_lifetime,
            spool_bytes=spool_bytes,
            trace=trace,
            snapshot=snapshot,
        )
        self.core: SandboxCore = _core(self.options, url, api_key, sandbox_id, keep=keep)

    @classmethod
    async def attach(
        cls, sandbox_id: str, *, url: str | None = None, api_key: str | None = None, exec_timeout: float = 60
    ) -> AsyncSandbox:
        """A sandbox that a server has already; `stop` leaves it there. Raises SandboxGoneError, SandboxError."""
        found = cls(url=url, api_key=api_key, sandbox_id=sandbox_id, exec_timeout=exec_timeout)
        await found.start()
        return found

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
        await self.core.start()

    async def stop(self) -> None:
        """End everything in the box and remove it, and its workspace where that is not a kept one. May be called
        twice."""
        await self.core.stop()

    async def reset(self) -> None:
        """The box anew, around the same workspace: everything that ran in it is ended. Raises SandboxError."""
        await self.core.reset()

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
    ) -> SandboxCommand:
        """Run a command: text for the box's shell, or a list of words. Any number may run at once.

        `timeout` ends it after so many seconds; `wait` bounds this call (None: until it has ended), and ends nothing.
        `stdin` is what it reads; True keeps its input open for `Command.send`. `cwd` is relative to /work. `env` is set
        over the sandbox's variables, None takes one out. With `merged` False stderr is a spool of its own. `terminal`
        gives it one of so many (rows, columns).

        Raises OSError with the reason when it cannot be started, SandboxError, SandboxGoneError, ValueError.
        """
        return await self.core.exec(
            command,
            timeout=timeout,
            wait=wait,
            stdin=stdin,
            cwd=cwd,
            env=env,
            user=user,
            merged=merged,
            terminal=terminal,
        )

    @property
    def commands(self) -> tuple[SandboxCommand, ...]:
        """Those that run, and the last that have ended."""
        return self.core.commands

    async def find_commands(self) -> tuple[SandboxCommand, ...]:
        """All that are known of it; of a box behind a server also those that other clients started."""
        return await self.core.find_commands()

    async def find_command(self, command_id: str) -> SandboxCommand:
        """The command of a box behind a server that has this id. Raises NotFoundError."""
        for command in await self.core.find_commands():
            if getattr(command, "id", None) == command_id:
                return command
        raise NotFoundError(f"no command {command_id!r}", hint="`find_commands()` gives those that are known")

    # ---- the shell tools

    async def shell(self, tool: str, *arguments: Any) -> ShellResult:
        """The answer of the shell tool "exec", "wait" or "kill"."""
        return await self.core.shell(tool, *arguments)

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
        return await self.core.dispatch(name, arguments)

    # ---- files

    @property
    def files(self) -> SandboxFiles:
        """Its files; see files.Files."""
        return self.core.files

    async def fetch_workspace(self, to: str | os.PathLike[str]) -> Fetched:
        """Copy the workspace's files and directories to a new directory of the host, also when the box is gone. Links
        are left out, not followed. Raises OSError, WorkspaceError, SandboxError."""
        return await self.core.fetch_workspace(to)

    async def fetch_trace(self, to: str | os.PathLike[str]) -> int:
        """Copy its trace, as far as it is written, to a new file for `agentbox verify`; how many bytes that are. Raises
        SandboxError where there is none, OSError."""
        return await self.core.fetch_trace(to)

    # ---- state

    async def pause(self) -> None:
        """Stop everything in the box where it is, until `resume`: it uses no processor time, and calls raise
        SandboxPausedError. Raises SandboxError, SandboxGoneError."""
        await self.core.pause()

    async def resume(self) -> None:
        """Let everything in the box go on. Raises SandboxError, SandboxGoneError."""
        await self.core.resume()

    async def snapshot(
        self, name: str = "", *, keep: bool | None = None, told: Callable[[int], None] | None = None
    ) -> WorkspaceSnapshot:
        """Keep what is in the workspace now, at one moment: what runs is stopped for as long as it takes. It outlives
        the sandbox where it has a name, or the workspace is kept, or `keep` says so. `told` hears from a thread how
        many bytes are copied, where that takes time. Raises SandboxError, WorkspaceError."""
        return await self.core.snapshot(name, keep=keep, told=told)

    async def snapshots(self) -> list[WorkspaceSnapshot]:
        """Those of its workspace, the newest first."""
        return await self.core.snapshots()

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Remove one. Raises NotFoundError."""
        await self.core.delete_snapshot(snapshot_id)

    async def restore(self, snapshot_id: str, *, told: Callable[[int], None] | None = None) -> None:
        """Make the workspace what it was: everything that runs is ended, and the box is anew. Raises NotFoundError,
        WorkspaceError, SandboxError; the workspace is then as before."""
        await self.core.restore(snapshot_id, told=told)

    async def fork(self, count: int = 1, *, told: Callable[[int], None] | None = None) -> list[AsyncSandbox]:
        """Further sandboxes like this one, which have started, around copies of its workspace as it is at one moment;
        this one goes on. Each is to be stopped. Raises SandboxError, WorkspaceError; nothing is left then."""
        return [AsyncSandbox._around(core, self.options) for core in await self.core.fork(count, told=told)]

    @classmethod
    def _around(cls, core: SandboxCore, options: SandboxOptions) -> AsyncSandbox:
        made = cls.__new__(cls)
        made.options, made.core = options, core
        return made

    # ---- what there is to know

    @property
    def paused(self) -> bool:
        """Whether it is paused."""
        return self.core.paused

    async def refresh(self) -> None:
        """Ask anew how it stands with a box behind a server: its enforcement, its denials. Nothing to do for others."""
        await self.core.refresh()

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped; its box may be gone all the same."""
        return self.core.running

    @property
    def container_id(self) -> str | None:
        """The name of the box, None when it is not running."""
        return self.core.container_id

    @property
    def backend(self) -> str:
        """The backend's name; of one that is not running, as it was asked for."""
        return self.core.backend

    @property
    def workspace(self) -> str | None:
        """The directory of the host that is /work inside, None when it is not running."""
        return self.core.workspace

    @property
    def enforcement(self) -> Enforcement:
        """Which layer holds what; nothing for a box that is not there."""
        return self.core.enforcement

    @property
    def denials(self) -> tuple[Denial, ...]:
        """What was refused, the last thousand. Empty without a policy."""
        return self.core.denials

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the policy holds in part only, in words."""
        return self.core.warnings

    @property
    def trace(self) -> str | None:
        """The file of its trace, on the host that has the box; None where there is none."""
        return self.core.trace

    @property
    def limits(self) -> Limits:
        """What holds for everything in it together."""
        return self.options.limits

    @property
    def image(self) -> str | None:
        """The image that was asked for."""
        return self.options.image

    @property
    def exec_timeout(self) -> float:
        """For how many seconds the shell tools wait when their call does not say."""
        return self.options.exec_timeout

    @property
    def user(self) -> str:
        """Who commands run as, "agent" or "root" of the box."""
        return self.options.user


def _core(
    options: SandboxOptions, url: str | None, api_key: str | None, sandbox_id: str | None, *, keep: bool
) -> SandboxCore:
    usual_url, usual_key = server_of_clients()
    address = usual_url if url is None else url
    if address:
        from agentbox.sandbox.line import Line
        from agentbox.sandbox.remote import RemoteSandbox

        return RemoteSandbox(options, Line(address, usual_key if api_key is None else api_key), sandbox_id, keep=keep)
    if sandbox_id is not None or keep:
        raise SandboxError(
            "a box of this process can be neither kept nor found again", hint="give `url`, or set AGENTBOX_URL"
        )
    from agentbox.sandbox.local import LocalSandbox

    return LocalSandbox(options)


__all__ = ["DEFAULT_IMAGE", "AsyncSandbox"]
