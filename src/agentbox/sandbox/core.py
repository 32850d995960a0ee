# SPDX-License-Identifier: MIT
"""What stands behind the face of a sandbox: a box that this process owns, or one behind a server."""

from __future__ import annotations

import builtins
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, Unpack

from agentbox.models import Denial, Enforcement
from agentbox.sandbox.fetching import Fetched
from agentbox.sandbox.file_info import FileInfo
from agentbox.sandbox.results import ShellResult
from agentbox.sandbox.spool import Spool
from agentbox.sandbox.starting import StartFields
from agentbox.sandbox.texts import Excerpt
from agentbox.workspace.volume_snapshots import WorkspaceSnapshot


class SandboxCommand(Protocol):
    """A command, wherever its box is; see command.Command for what each part means."""

    argv: tuple[str, ...]
    pid: int | None
    exit_code: int | None
    signal: int | None
    timed_out: bool
    lost: str | None
    cpu_ms: float | None
    max_memory_bytes: int | None
    stdout: Spool
    stderr: Spool | None

    @property
    def running(self) -> bool:
        """Whether its process has not ended."""

    @property
    def over(self) -> bool:
        """Whether nothing that it started runs any more."""

    @property
    def elapsed_seconds(self) -> float:
        """Since its start, to now or to its end."""

    @property
    def idle_seconds(self) -> float:
        """Since its last output, or its start."""

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until it has ended; whether it has."""

    async def wait_closed(self, seconds: float | None = None) -> bool:
        """As `wait`, until nobody holds its output any more."""

    async def more(self, offset: int, *, error: bool = False) -> None:
        """Wait until its stdout, or its stderr, is longer than `offset`, or will never be."""

    async def read(self, offset: int = 0, size: int = 1 << 20, *, error: bool = False) -> tuple[int, bytes]:
        """Some of its output from `offset` on, and where that begins."""

    async def output(self, *, error: bool = False) -> bytes:
        """All that is kept of one of its streams."""

    def whole_output(self, *, error: bool = False) -> bytes | None:
        """What `output` would say, to any thread; None where that is to be asked of the loop."""

    def follow(self) -> AsyncIterator[tuple[str, bytes]]:
        """Its output as it comes, until it has ended."""

    def text(self, begin: int = 0) -> Excerpt:
        """What it wrote since a byte, as far as it is here, shortened as for a model."""

    async def send(self, data: bytes) -> None:
        """Write to its stdin."""

    def close_stdin(self) -> None:
        """It reads the end of file after what was sent."""

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""

    def send_signal(self, number: int) -> None:
        """Send a signal to its process group."""

    async def kill(self, grace_seconds: float = ...) -> int:
        """End it with everything that it started; how many processes are left."""


class SandboxFiles(Protocol):
    """Files of a sandbox, wherever its box is; see files.Files."""

    def stream(self, path: str, *, offset: int = 0, length: int = -1, user: str = "") -> AsyncIterator[bytes]:
        """A file's bytes, piece by piece."""

    async def read(self, path: str, *, offset: int = 0, length: int = -1, max_bytes: int = -1, user: str = "") -> bytes:
        """A file's bytes."""

    async def read_text(self, path: str, *, user: str = "") -> str:
        """A file's text."""

    async def write(
        self,
        path: str,
        data: str | bytes | Iterable[bytes] | AsyncIterable[bytes],
        *,
        mode: int | None = None,
        how: str = "replace",
        user: str = "",
    ) -> None:
        """Write a file, with its parents."""

    async def list(self, path: str = ".", *, depth: int = 1, user: str = "") -> builtins.list[FileInfo]:
        """What is in a directory."""

    async def info(self, path: str, *, user: str = "") -> FileInfo:
        """What is at a path."""

    async def exists(self, path: str) -> bool:
        """Whether something is there."""

    async def make_directory(self, path: str, *, mode: int = 0o755, user: str = "") -> None:
        """Make a directory with its parents."""

    async def remove(self, path: str, *, user: str = "") -> None:
        """Remove a file, or a directory with all that is in it."""

    async def rename(self, path: str, to: str, *, user: str = "") -> None:
        """Give it another name."""

    async def download(
        self, path: str, to: str | os.PathLike[str], *, told: Callable[[int], None] | None = None
    ) -> int:
        """Copy a file or a directory to the caller's machine."""

    async def upload(
        self, source: str | os.PathLike[str], path: str, *, told: Callable[[int], None] | None = None
    ) -> int:
        """Copy a file or a directory into the box."""


class SandboxCore(Protocol):
    """What a sandbox does; see AsyncSandbox for what each part means."""

    @property
    def files(self) -> SandboxFiles:
        """Its files."""

    async def start(self) -> None:
        """Make the box."""

    async def stop(self) -> None:
        """Remove the box."""

    async def reset(self) -> None:
        """The box anew, around the same workspace."""

    async def exec(
        self, command: str | Sequence[str], *, timeout: float | None, wait: float | None, **how: Unpack[StartFields]
    ) -> SandboxCommand:
        """Run a command."""

    def exec_here(
        self, command: str | Sequence[str], *, timeout: float | None, wait: float | None, **how: Unpack[StartFields]
    ) -> SandboxCommand | None:
        """As `exec`, in any thread but the loop's, which waits itself; None, and nothing was done, where that costs no
        less."""

    @property
    def commands(self) -> tuple[SandboxCommand, ...]:
        """Those that run, and the last that have ended."""

    async def find_commands(self) -> tuple[SandboxCommand, ...]:
        """All that are known of it, whoever started them."""

    async def shell(self, tool: str, *arguments: Any) -> ShellResult:
        """The answer of the shell tool "exec", "wait" or "kill"."""

    async def dispatch(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The answer to a model's call."""

    async def fetch_workspace(self, to: str | os.PathLike[str]) -> Fetched:
        """Copy the workspace to a new directory."""

    async def fetch_trace(self, to: str | os.PathLike[str]) -> int:
        """Copy its trace to a new file."""

    async def refresh(self) -> None:
        """Ask anew how it stands with the box."""

    async def pause(self) -> None:
        """Stop everything in the box where it is."""

    async def resume(self) -> None:
        """Let everything in the box go on."""

    async def snapshot(
        self, name: str = "", *, keep: bool | None = None, told: Callable[[int], None] | None = None
    ) -> WorkspaceSnapshot:
        """Keep what is in the workspace now."""

    async def snapshots(self) -> list[WorkspaceSnapshot]:
        """What was kept of it."""

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Remove one."""

    async def restore(self, snapshot_id: str, *, told: Callable[[int], None] | None = None) -> None:
        """The workspace as it was then, and the box anew."""

    async def fork(self, count: int = 1, *, told: Callable[[int], None] | None = None) -> Sequence[SandboxCore]:
        """Others like it, around copies of its workspace."""

    @property
    def paused(self) -> bool:
        """Whether it is paused."""

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped."""

    @property
    def container_id(self) -> str | None:
        """The name of the box."""

    @property
    def backend(self) -> str:
        """The backend's name."""

    @property
    def workspace(self) -> str | None:
        """Where /work is on the host that has the box."""

    @property
    def enforcement(self) -> Enforcement:
        """Which layer holds what."""

    @property
    def denials(self) -> tuple[Denial, ...]:
        """What was refused."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of its policy holds in part only."""

    @property
    def trace(self) -> str | None:
        """The file of its trace."""
