# SPDX-License-Identifier: MIT
"""What a durable box is: one that lives for hours, runs our agent inside, and is rebuilt around its kept workspace.

Whoever owns it speaks with the agent over one kept stream (spec/agent); everything else of the box, its limits and its
end, is the backend's.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from agentbox.errors import BackendUnavailableError
from agentbox.isolation.network import HeldNetwork, Network
from agentbox.isolation.plan import WorkspaceView
from agentbox.isolation.requirement import Requirement
from agentbox.models import Confinement, Enforcement, ProgramRule
from agentbox.records import dataclass, field

AGENT_DIRECTORY = "/.agentbox"
AGENT = f"{AGENT_DIRECTORY}/agent"
AGENT_PYTHON = f"{AGENT_DIRECTORY}/agent_python"
WORKSPACE = "/work"
HOME = "/root"

_PACKAGE = Path(__file__).resolve().parents[1]
_NATIVE = _PACKAGE / "isolation" / "native" / "agentbox-agent"
_FALLBACK = _PACKAGE / "guest" / "agent"
_FALLBACK_CODE = f"import sys; sys.path.insert(0, {AGENT_DIRECTORY!r}); from agent_python.main import main; main()"
_READ_BYTES = 1 << 18
_PIPE_BYTES = 1 << 20
_SET_PIPE_SIZE = 1031


@dataclass(frozen=True, slots=True)
class DurableRequest:
    """A durable box as it is asked for.

    `name` ([a-z0-9-]) names what the backend makes. `workspace` is an absolute directory of the host, shown writable at
    /work and, the same, at /root; the backend sees to it that the box's user may write there and that what it writes
    does not become a danger on the host. `user` is "agent" (no privileges) or "root" (of the box alone). `environment`
    holds variables that every command gets. `owner` is "PID:START", the process that the box dies with and its start in
    clock ticks since boot, for labels. `network` is joined in place of one that leads nowhere. `disk_held` says that
    the file system holds the size of the workspace; `spares` makes others like it, where it is new and empty;
    `rehearse` has the agent of a box in stock run a command of no consequence, and raises OSError, SandboxError. Of the
    workspace only what `view` says is shown, where there is one. `programs` are the rules about what may be started,
    None where anything may; for backends that `judges`. `on_report` gets what the exec judge or the box's kernel saw.
    """

    name: str
    workspace: str
    confinement: Confinement
    user: str = "agent"
    image: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    network: Network | None = None
    keeper: str = ""
    disk_held: bool = False
    spares: Spares | None = None
    rehearse: Callable[[AgentStream], Awaitable[AgentStream]] | None = None
    view: WorkspaceView | None = None
    programs: tuple[tuple[ProgramRule, ...], ...] | None = None
    on_report: Callable[[dict[str, Any]], None] | None = None


class Spares(Protocol):
    """Workspaces for boxes that are built before they are asked for. Calls block for a moment."""

    @property
    def key(self) -> str:
        """The same for two that make workspaces that are alike."""

    def make(self) -> str:
        """An empty one. Raises OSError, WorkspaceError."""

    def give(self, spare: str, workspace: str) -> None:
        """Put it in place of another empty one. Raises OSError, WorkspaceError."""

    def discard(self, spare: str) -> None:
        """Remove it. Does not raise."""


class AgentStream(Protocol):
    """The kept stream to a program in the box: its stdin and its stdout. What it writes to its stderr is the backend's
    to keep or drop; it is for people."""

    async def read(self) -> bytes:
        """Some of what it wrote next, at most 1 MiB; empty when it has ended. Does not raise."""

    async def write(self, data: bytes) -> None:
        """Write all of it. One caller at a time. Raises OSError when the program has ended."""

    async def close(self) -> None:
        """Close both directions; the agent then ends with everything that it started. Does not raise."""


class DurableBox(Protocol):
    """A live durable box."""

    @property
    def name(self) -> str:
        """The name of the request."""

    @property
    def workspace(self) -> str:
        """The directory of the host that is shown at /work and /root."""

    @property
    def enforcement(self) -> Enforcement:
        """Which layer holds what in this box."""

    @property
    def unix_listeners(self) -> Mapping[str, socket.socket]:
        """Those that the request's network asked for, by path, for its owner to serve; closed with the box."""

    async def open_stream(self, argv: Sequence[str], env: Mapping[str, str], user: str, cwd: str) -> AgentStream:
        """Run the in-box agent; `argv` is one of `agent_commands()`, `user` "" for whoever the backend runs it as.
        Called again when a stream has ended and `alive` is true: nothing of the earlier agent, and nothing that it
        started, runs any more when this returns. Raises OSError when it cannot be executed, IsolationError when the
        box is gone."""

    async def alive(self) -> bool:
        """Whether programs can be started in it still. Does not raise."""

    async def why_gone(self) -> str:
        """What is known about the end of a box that is not alive ("its memory limit was reached"); empty if nothing."""

    async def pause(self) -> None:
        """Stop every process of it where it is. Called once, then `resume`. Raises OSError, IsolationError with what is
        in the way; everything runs on then."""

    async def resume(self) -> None:
        """Let everything go on. Raises OSError, IsolationError."""

    async def destroy(self) -> None:
        """Kill, wait, remove everything but the workspace. Not of one that is paused. May be called twice; does not
        raise."""


class DurableBackend(Protocol):
    """A backend that has durable boxes. Looked up by name in durable_registry.DURABLE. One that `judges` decides on
    every program that is started, where there are rules about that."""

    name: str
    judges: bool

    def requirements(self) -> tuple[Requirement, ...]:
        """What it needs of the host, as far as can be told without building a box."""

    async def hold_network(self) -> HeldNetwork | None:
        """A namespace for one box that will have a way out; None where boxes join any that is made for them. Raises
        IsolationError."""

    async def launch_durable(self, request: DurableRequest) -> DurableBox:
        """A box that `open_stream` can be called on. Raises IsolationError; nothing is left then."""

    async def leftovers(self) -> Sequence[Leftover]:
        """What boxes of dead owners left behind. Does not raise."""


class Adopts(Protocol):
    """A DurableBackend whose boxes outlive their owner."""

    async def adopt_durable(self, request: DurableRequest) -> AdoptedBox | None:
        """The box that an owner before this one made for the same request (its name and keeper), with the files that it
        had; nothing runs in it. None where there is none. Raises IsolationError."""


class AdoptedBox(DurableBox, Protocol):
    """A box that can be left for the next owner."""

    async def leave(self) -> None:
        """End everything in it, and let it be. Does not raise."""


class Leftover(Protocol):
    """Something that a dead owner's box left: a container, a bundle, mounts."""

    @property
    def name(self) -> str:
        """The name of its request."""

    @property
    def what(self) -> str:
        """For people: "container agentbox-1f3a, started 2026-11-30T12:00:00Z"."""

    async def remove(self) -> None:
        """Remove it, not the workspace. Raises IsolationError."""


def agent_files() -> tuple[tuple[str, str], ...]:
    """(file or directory of the host, path in the box) of the agents, to be shown read-only."""
    both = ((_NATIVE, AGENT), (_FALLBACK, AGENT_PYTHON))
    return tuple((str(file), path) for file, path in both if file.exists())


def agent_commands(*, python_only: bool = False) -> tuple[tuple[str, ...], ...]:
    """The commands that start an agent in the box, in the order of trying: the static program, then the box's Python.
    All of their arguments are these; a backend may add none."""
    native = ((AGENT,),) if _NATIVE.is_file() and not python_only else ()
    pythons = ("/usr/bin/python3", "/usr/local/bin/python3")
    return (*native, *((python, "-I", "-S", "-B", "-c", _FALLBACK_CODE) for python in pythons))


class PipeStream:
    """A stream over two descriptors of the host (or one socket twice), which it makes non-blocking and owns."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        for fd in {read_fd, write_fd}:
            os.set_blocking(fd, False)
            # A bigger pipe means fewer turns; not everybody may have one, and a socket has none.
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, _SET_PIPE_SIZE, _PIPE_BYTES)
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._waiting: set[asyncio.Future[None]] = set()

    async def read(self) -> bytes:
        """See AgentStream."""
        while not self._closed:
            try:
                return os.read(self._read_fd, _READ_BYTES)
            except BlockingIOError:
                await self._ready(self._read_fd, writing=False)
            except OSError:
                break
        return b""

    def write_now(self, data: bytes) -> int:
        """Write so much of it as there is room for at once, while nobody is within `write`; how much that is."""
        if self._closed:
            return 0
        try:
            return os.write(self._write_fd, data)
        except OSError:
            # What is wrong is told by `write`.
            return 0

    async def write(self, data: bytes) -> None:
        """See AgentStream."""
        view = memoryview(data)
        while view:
            if self._closed:
                raise BrokenPipeError("the stream is closed")
            try:
                view = view[os.write(self._write_fd, view) :]
            except BlockingIOError:
                await self._ready(self._write_fd, writing=True)

    async def _ready(self, fd: int, *, writing: bool) -> None:
        waiting: asyncio.Future[None] = self._loop.create_future()
        add, remove = (
            (self._loop.add_writer, self._loop.remove_writer)
            if writing
            else (self._loop.add_reader, self._loop.remove_reader)
        )
        add(fd, _wake, waiting)
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)
            if not self._closed:
                remove(fd)

    async def close(self) -> None:
        """See AgentStream."""
        if self._closed:
            return
        self._closed = True
        for fd in {self._read_fd, self._write_fd}:
            with contextlib.suppress(OSError, ValueError):
                self._loop.remove_reader(fd)
            with contextlib.suppress(OSError, ValueError):
                self._loop.remove_writer(fd)
            os.close(fd)
        for waiting in self._waiting:
            _wake(waiting)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def gone(name: str, why: str = "") -> BackendUnavailableError:
    """The error of `open_stream` on a box that is not alive any more."""
    return BackendUnavailableError(
        f"the box of sandbox {name} is gone{f': {why}' if why else ''}", hint="build it anew around its kept workspace"
    )
