# SPDX-License-Identifier: MIT
"""The synchronous faces of a sandbox, of its commands and of its files: each call is one of the asynchronous ones, on
a loop of its own thread. May be used from any number of threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from agentbox.models import Denial, Enforcement
from agentbox.sandbox.asynchronous import DEFAULT_IMAGE, AsyncSandbox
from agentbox.sandbox.command import DEFAULT_GRACE_SECONDS
from agentbox.sandbox.core import SandboxCommand
from agentbox.sandbox.fetching import Fetched
from agentbox.sandbox.file_info import FileInfo
from agentbox.sandbox.loops import at_exit, call, loop, not_at_exit
from agentbox.sandbox.results import ShellResult
from agentbox.sandbox.spool import DEFAULT_BYTES
from agentbox.sandbox.starting import StartFields
from agentbox.workspace.volume_snapshots import WorkspaceSnapshot


class Command:
    """A command in a sandbox. `exit_code` is None while it runs and 128+n after signal n."""

    def __init__(self, command: SandboxCommand) -> None:
        self.asynchronous = command

    @property
    def pid(self) -> int | None:
        """Its process in the box."""
        return self.asynchronous.pid

    @property
    def exit_code(self) -> int | None:
        """Its exit code, None while it runs."""
        return self.asynchronous.exit_code

    @property
    def running(self) -> bool:
        """Whether its process has not ended."""
        return self.asynchronous.running

    @property
    def timed_out(self) -> bool:
        """Whether its timeout ended it."""
        return self.asynchronous.timed_out

    @property
    def signal(self) -> int | None:
        """The number of the signal that ended it."""
        return self.asynchronous.signal

    @property
    def lost(self) -> str | None:
        """Why its end is not known, where the agent or the box ended under it."""
        return self.asynchronous.lost

    @property
    def stdout(self) -> bytes:
        """What is kept of its output, with stderr where both are merged; 64 MiB at most unless said otherwise."""
        return self._output(error=False)

    @property
    def stderr(self) -> bytes:
        """What is kept of its stderr, where that is apart."""
        return self._output(error=True)

    def read(self, offset: int = 0, size: int = 1 << 20) -> tuple[int, bytes]:
        """At most `size` bytes of its output from `offset` on, and where they begin: later where that is not kept."""
        return call(self.asynchronous.read(offset, size))

    def text(self, begin: int = 0) -> str:
        """Its output since a byte, shortened as for a model."""

        async def text() -> str:
            return self.asynchronous.text(begin).text

        return call(text())

    def follow(self) -> Iterator[tuple[str, bytes]]:
        """Its output as it comes: ("stdout" or "stderr", some bytes) from the beginning, until it has ended."""
        pieces = self.asynchronous.follow()
        try:
            while True:
                try:
                    yield call(anext(pieces))  # type: ignore[arg-type]
                except StopAsyncIteration:
                    return
        finally:
            call(pieces.aclose())  # type: ignore[attr-defined]

    def more(self, offset: int) -> None:
        """Wait until its output is longer than `offset`, or never will be."""
        call(self.asynchronous.more(offset))

    def _output(self, *, error: bool) -> bytes:
        known = self.asynchronous.whole_output(error=error)
        return call(self.asynchronous.output(error=error)) if known is None else known

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it has ended, at most so long; whether it has. Ends nothing."""
        # Each turn of another thread takes as long as a small command, on a busy host.
        return not self.asynchronous.running or call(self.asynchronous.wait(seconds))

    def send(self, data: bytes | str) -> None:
        """Write to its stdin."""
        call(self.asynchronous.send(data.encode() if isinstance(data, str) else data))

    def close_stdin(self) -> None:
        """Let it read the end of file."""
        loop().call_soon_threadsafe(self.asynchronous.close_stdin)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        loop().call_soon_threadsafe(self.asynchronous.resize, rows, columns)

    def send_signal(self, number: int) -> None:
        """Send a signal to its process group."""
        loop().call_soon_threadsafe(self.asynchronous.send_signal, number)

    def kill(self, grace_seconds: float = DEFAULT_GRACE_SECONDS) -> int:
        """End it with everything that it started; returns how many processes are left, 0 as a rule."""
        return call(self.asynchronous.kill(grace_seconds))


class Files:
    """See files.Files: the same methods, which wait."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._files = sandbox.files

    def read(self, path: str, *, offset: int = 0, length: int = -1, max_bytes: int = -1, user: str = "") -> bytes:
        """A file's bytes."""
        return call(self._files.read(path, offset=offset, length=length, max_bytes=max_bytes, user=user))

    def read_text(self, path: str, *, user: str = "") -> str:
        """A file's text."""
        return call(self._files.read_text(path, user=user))

    def stream(self, path: str, *, offset: int = 0, length: int = -1) -> Iterator[bytes]:
        """A file's bytes, piece by piece."""
        pieces = self._files.stream(path, offset=offset, length=length)
        try:
            while True:
                try:
                    yield call(anext(pieces))  # type: ignore[arg-type]
                except StopAsyncIteration:
                    return
        finally:
            call(pieces.aclose())  # type: ignore[attr-defined]

    def write(
        self,
        path: str,
        data: str | bytes | Iterable[bytes],
        *,
        mode: int | None = None,
        how: str = "replace",
        user: str = "",
    ) -> None:
        """Write a file, with its parents."""
        call(self._files.write(path, data, mode=mode, how=how, user=user))

    def list(self, path: str = ".", *, depth: int = 1, user: str = "") -> list[FileInfo]:
        """What is in a directory."""
        return call(self._files.list(path, depth=depth, user=user))

    def info(self, path: str, *, user: str = "") -> FileInfo:
        """What is at a path."""
        return call(self._files.info(path, user=user))

    def exists(self, path: str) -> bool:
        """Whether something is there."""
        return call(self._files.exists(path))

    def make_directory(self, path: str, *, mode: int = 0o755, user: str = "") -> None:
        """Make a directory with its parents."""
        call(self._files.make_directory(path, mode=mode, user=user))

    def remove(self, path: str, *, user: str = "") -> None:
        """Remove a file, or a directory with all that is in it."""
        call(self._files.remove(path, user=user))

    def rename(self, path: str, to: str, *, user: str = "") -> None:
        """Give it another name."""
        call(self._files.rename(path, to, user=user))

    def download(self, path: str, to: str | os.PathLike[str], *, told: Callable[[int], None] | None = None) -> int:
        """Copy a file or a directory to the host; `told` is called with how many bytes were copied so far."""
        return call(self._files.download(path, to, told=told))

    def upload(self, source: str | os.PathLike[str], path: str, *, told: Callable[[int], None] | None = None) -> int:
        """Copy a file or a directory into the box; `told` is called with how many bytes were copied so far."""
        return call(self._files.upload(source, path, told=told))


class Sandbox:
    """A durable box for one agent. See AsyncSandbox for the arguments; use it with `with`, or `start` and `stop`."""

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
        async def make() -> AsyncSandbox:
            return AsyncSandbox(
                image,
                memory,
                cpus,
                pids_limit,
                exec_timeout,
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
                url=url,
                api_key=api_key,
                keep=keep,
                sandbox_id=sandbox_id,
            )

        self.asynchronous = call(make())
        self.files = Files(self.asynchronous)

    @classmethod
    def attach(
        cls, sandbox_id: str, *, url: str | None = None, api_key: str | None = None, exec_timeout: float = 60
    ) -> Sandbox:
        """A sandbox that a server has already; `stop` leaves it there. Raises SandboxGoneError, SandboxError."""
        found = cls(url=url, api_key=api_key, sandbox_id=sandbox_id, exec_timeout=exec_timeout)
        found.start()
        return found

    def __enter__(self) -> Sandbox:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Make the box. Raises SandboxError; nothing is left then."""
        call(self.asynchronous.start())
        at_exit(self.stop)

    def stop(self) -> None:
        """End everything in the box and remove it. May be called twice."""
        not_at_exit(self.stop)
        call(self.asynchronous.stop())

    def reset(self) -> None:
        """The box anew, around the same workspace."""
        call(self.asynchronous.reset())

    def exec(
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
        """Run a command; see AsyncSandbox.exec."""
        how: StartFields = {
            "stdin": stdin,
            "cwd": cwd,
            "env": env,
            "user": user,
            "merged": merged,
            "terminal": terminal,
        }
        core = self.asynchronous.core
        found = core.exec_here(command, timeout=timeout, wait=wait, **how)
        return Command(found or call(core.exec(command, timeout=timeout, wait=wait, **how)))

    def find_commands(self) -> tuple[Command, ...]:
        """All that are known of it; of a box behind a server also those that other clients started."""
        return tuple(Command(one) for one in call(self.asynchronous.find_commands()))

    def shell(self, tool: str, *arguments: Any) -> ShellResult:
        """The answer of the shell tool "exec", "wait" or "kill" as data."""
        return call(self.asynchronous.shell(tool, *arguments))

    def shell_exec(self, command: str, timeout: float | None = None) -> str:
        """Run a shell command and wait for it; `timeout` seconds only stop the waiting."""
        return call(self.asynchronous.shell_exec(command, timeout))

    def shell_wait(self, timeout: float | None = None) -> str:
        """Wait on for the command that runs."""
        return call(self.asynchronous.shell_wait(timeout))

    def shell_kill(self) -> str:
        """End the command that runs, with everything that it started."""
        return call(self.asynchronous.shell_kill())

    def dispatch(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Answer a model's call of one of its tools; see tools.dispatch."""
        return call(self.asynchronous.dispatch(name, arguments))

    def fetch_workspace(self, to: str | os.PathLike[str]) -> Fetched:
        """Copy the workspace to a new directory of the host, also when the box is gone."""
        return call(self.asynchronous.fetch_workspace(to))

    def fetch_trace(self, to: str | os.PathLike[str]) -> int:
        """Copy its trace to a new file for `agentbox verify`; how many bytes that are."""
        return call(self.asynchronous.fetch_trace(to))

    def pause(self) -> None:
        """Stop everything in the box where it is, until `resume`."""
        call(self.asynchronous.pause())

    def resume(self) -> None:
        """Let everything in the box go on."""
        call(self.asynchronous.resume())

    @property
    def paused(self) -> bool:
        """Whether it is paused."""
        return self.asynchronous.paused

    def snapshot(
        self, name: str = "", *, keep: bool | None = None, told: Callable[[int], None] | None = None
    ) -> WorkspaceSnapshot:
        """Keep what is in the workspace now, at one moment; see AsyncSandbox.snapshot."""
        return call(self.asynchronous.snapshot(name, keep=keep, told=told))

    def snapshots(self) -> list[WorkspaceSnapshot]:
        """Those of its workspace, the newest first."""
        return call(self.asynchronous.snapshots())

    def delete_snapshot(self, snapshot_id: str) -> None:
        """Remove one."""
        call(self.asynchronous.delete_snapshot(snapshot_id))

    def restore(self, snapshot_id: str, *, told: Callable[[int], None] | None = None) -> None:
        """Make the workspace what it was, and the box anew."""
        call(self.asynchronous.restore(snapshot_id, told=told))

    def fork(self, count: int = 1, *, told: Callable[[int], None] | None = None) -> list[Sandbox]:
        """Further sandboxes like this one, which have started, around copies of its workspace; stop each."""
        made = [Sandbox._around(one) for one in call(self.asynchronous.fork(count, told=told))]
        for one in made:
            at_exit(one.stop)
        return made

    @classmethod
    def _around(cls, asynchronous: AsyncSandbox) -> Sandbox:
        made = cls.__new__(cls)
        made.asynchronous, made.files = asynchronous, Files(asynchronous)
        return made

    def refresh(self) -> None:
        """Ask anew how it stands with a box behind a server."""
        call(self.asynchronous.refresh())

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped."""
        return self.asynchronous.running

    @property
    def container_id(self) -> str | None:
        """The name of the box, None when it is not running."""
        return self.asynchronous.container_id

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self.asynchronous.backend

    @property
    def workspace(self) -> str | None:
        """The directory of the host that is /work inside."""
        return self.asynchronous.workspace

    @property
    def enforcement(self) -> Enforcement:
        """Which layer holds what."""
        return self.asynchronous.enforcement

    @property
    def denials(self) -> tuple[Denial, ...]:
        """What was refused, the last thousand."""
        self.refresh()
        return self.asynchronous.denials

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the policy holds in part only, in words."""
        return self.asynchronous.warnings

    @property
    def trace(self) -> str | None:
        """The file of its trace, None where there is none."""
        return self.asynchronous.trace

    @property
    def image(self) -> str | None:
        """The image that was asked for."""
        return self.asynchronous.image


__all__ = ["DEFAULT_IMAGE", "Command", "Files", "Sandbox"]
