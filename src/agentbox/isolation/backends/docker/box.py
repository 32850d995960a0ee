# SPDX-License-Identifier: MIT
"""One container that was made for one program: our init waits in it for what to run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
from collections.abc import Mapping, Sequence

from agentbox.errors import AgentboxError, ConfinementError, EngineError, InternalError
from agentbox.isolation.backends.docker.engine import Engine
from agentbox.isolation.backends.docker.ground import Ground
from agentbox.isolation.backends.docker.spec import Container, request_of
from agentbox.isolation.backends.docker.streams import STDERR, STDOUT, pump_input, pump_output, ready
from agentbox.isolation.boxes import CommandExit
from agentbox.linux import terminals
from agentbox.linux.cgroup_owners import kill_member
from agentbox.records import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agentbox.isolation.plan import WorkspaceView

_GONE_SECONDS = 15
_CANNOT_CONFINE = 125
_KIBI = 1 << 10
_ON_TERMINAL = 1 << 31
_STREAMS = {1: STDOUT, 2: STDERR}


@dataclass(frozen=True, slots=True)
class Shown:
    """What is asked of the plan of a box."""

    workspace: str
    namespaces: bool
    host_uid: int
    host_gid: int


class DockerBox:
    """Begins as a container in which nothing of the guest runs; `start` may be called once."""

    def __init__(self, engine: Engine, name: str, plan: Shown, ground: Ground) -> None:
        self.plan = plan
        self.oom = False
        # Whether it ended without a word, as when the kernel kills what holds all of it.
        self.fell_silent = False
        self.processes: int | None = None
        self.channel: socket.socket | None = None
        self.unix_listeners: Mapping[str, socket.socket] = {}
        # Where the init hands over the other end of the program's terminal; None where it cannot have one.
        self.terminal: socket.socket | None = None
        self.workspace_fd = ground.open_workspace()
        self._engine = engine
        self._name = name
        self._ground = ground
        self._streams: socket.socket | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._over: asyncio.Task[CommandExit] | None = None
        self._killing: asyncio.Task[None] | None = None
        self._gone = False
        self._staged: Container | None = None

    async def create(self, container: Container) -> None:
        """Make and start the container. Raises IsolationError; `destroy` then removes what there is of it."""
        engine, path = self._engine, f"/containers/{self._name}"
        await engine.call("POST", "/containers/create", {"name": self._name}, request_of(container))
        self._streams = await engine.in_thread(lambda: engine.attach(self._name))
        await engine.call("POST", f"{path}/start")

    def stage(self, container: Container) -> None:
        """Wait for `show` with the making."""
        self._staged = container

    async def inspect(self) -> dict[str, Any]:
        """What the engine knows of the container. Raises IsolationError."""
        found: dict[str, Any] = await self._engine.call("GET", f"/containers/{self._name}/json")
        return found

    async def start(
        self, argv: Sequence[str], env: dict[str, str], cwd: str, stdio: Sequence[int]
    ) -> asyncio.Future[CommandExit]:
        """See AnyBox. A program that cannot be executed ends with 126 or 127 and a line on stderr."""
        return self._run(program_bytes(argv, env, cwd), dict(enumerate(stdio)))

    def _run(self, program: bytes, stdio: Mapping[int, int]) -> asyncio.Task[CommandExit]:
        """Let the init run the program; of its 0, 1 and 2 those that are named come from and go to descriptors."""
        streams = self._streams
        if streams is None or self._over is not None:
            raise InternalError(f"container {self._name} runs one program")
        given = {number: os.dup(fd) for number, fd in stdio.items()}
        source = given.pop(0, -1)
        for fd in given.values():
            os.set_blocking(fd, False)

        async def feed() -> None:
            try:
                with contextlib.suppress(OSError):
                    await asyncio.get_running_loop().sock_sendall(streams, program)
                    if source >= 0:
                        await pump_input(source, streams)
                    else:
                        streams.shutdown(socket.SHUT_WR)
            finally:
                if source >= 0:
                    os.close(source)

        async def follow() -> CommandExit:
            try:
                await pump_output(streams, {_STREAMS[number]: fd for number, fd in given.items()})
            finally:
                for fd in given.values():
                    os.close(fd)
            return await self._ending()

        self._keep(asyncio.create_task(feed()))
        self._over = self._keep(asyncio.create_task(follow()))
        return self._over

    async def start_with_signals(
        self, argv: Sequence[str], env: dict[str, str], cwd: str, stdio: Sequence[int]
    ) -> tuple[int, asyncio.Future[CommandExit]]:
        """See AnyBox."""
        return 1, await self.start(argv, env, cwd, stdio)

    async def start_on_terminal(
        self,
        argv: Sequence[str],
        env: dict[str, str],
        cwd: str,
        size: tuple[int, int],
        instead: Mapping[int, int] | None = None,
    ) -> tuple[int, asyncio.Future[CommandExit], int]:
        """See AnyBox. The terminal is the container's own; its init hands over the other end of it."""
        if self.terminal is None:
            raise InternalError("this container has no terminal")
        kept = dict(instead or {})
        over = self._run(program_bytes(argv, env, cwd, on_terminal=True), kept)
        handing = asyncio.create_task(self._taken(self.terminal, size, kept))
        await asyncio.wait([handing, over], return_when=asyncio.FIRST_COMPLETED)
        if not handing.done():
            handing.cancel()
            # Why it could not.
            await over
            raise ConfinementError(
                "the container opened no terminal",
                hint="redirect the output to do without, or use the jail",
                step="terminal",
                errno=0,
            )
        return 1, over, handing.result()

    async def _taken(self, listener: socket.socket, size: tuple[int, int], kept: Mapping[int, int]) -> int:
        """The terminal's other end, from the first who connects: nothing of the guest's runs yet."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        line, _ = await loop.sock_accept(listener)
        with line:
            line.setblocking(False)
            await ready(line.fileno(), writing=False)
            _, descriptors, _, _ = socket.recv_fds(line, 1, 1)
            if not descriptors:
                raise ConnectionResetError("the init of the container ended")
            [master] = descriptors
            terminals.set_size(master, *size)
            await loop.sock_sendall(line, bytes([sum(1 << number for number in kept)]))
        return master

    async def signal(self, key: int, number: int) -> None:
        """See AnyBox. The init passes on what it can be sent; of what stops everybody it would stop itself."""
        del key
        number = signal.SIGTSTP if number == signal.SIGSTOP else number
        with contextlib.suppress(AgentboxError):
            await self._engine.call("POST", f"/containers/{self._name}/kill", {"signal": str(number)})

    async def show(self, view: WorkspaceView) -> None:
        """See AnyBox."""
        if self._staged is None:
            raise InternalError("a container that runs shows its workspace whole")
        binds = await asyncio.to_thread(self._ground.binds, view)
        staged, self._staged = self._staged, None
        await self.create(replace(staged, binds=binds))

    async def decide_on_changes(self, *, allowed: bool) -> None:
        """See AnyBox."""
        del allowed
        raise InternalError("calls in a container do not wait for anybody")

    async def judged(self) -> None:
        """See AnyBox."""

    def kill(self) -> None:
        """See AnyBox."""
        if self._killing is None:
            self._killing = self._keep(asyncio.create_task(self._kill()))

    async def kill_programs(self) -> None:
        """See AnyBox. Raises TimeoutError."""
        if self._over is not None and self._over.done() and self._ground.report():
            # The init reports when nothing else is left, and ends.
            return
        self.kill()
        assert self._killing is not None
        async with asyncio.timeout(_GONE_SECONDS):
            await self._killing
            if self._over is not None:
                await asyncio.wait([self._over])

    async def destroy(self) -> None:
        """See AnyBox."""
        if self._gone:
            return
        self._gone = True
        with contextlib.suppress(AgentboxError):
            await self._engine.call("DELETE", f"/containers/{self._name}", {"force": "1", "v": "1"})
        if self._streams is not None:
            self._streams.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in (*self.unix_listeners.values(), self.channel, self.terminal):
            if listener is not None:
                listener.close()
        if self.workspace_fd >= 0:
            os.close(self.workspace_fd)
            self.workspace_fd = -1
        await asyncio.to_thread(self._ground.clear)

    async def _kill(self) -> None:
        with contextlib.suppress(EngineError):
            kill_at_once(await self.inspect())
        with contextlib.suppress(EngineError):
            # 409: it does not run any more.
            await self._engine.call("POST", f"/containers/{self._name}/kill", {"signal": "KILL"})
        # 404: it was not made, or somebody else removed it.
        with contextlib.suppress(EngineError):
            while (await self.inspect())["State"]["Running"]:  # noqa: ASYNC110 - the engine tells nobody
                await asyncio.sleep(0.005)

    async def _ending(self) -> CommandExit:
        """How the program ended, when the streams did."""
        reported = self._ground.report()
        if reported is not None:
            status, cpu_ms, max_rss_kib, oom_kills = reported
            self.oom = self.oom or oom_kills > 0
            return CommandExit(status, float(cpu_ms), max_rss_kib * _KIBI)
        state: dict[str, Any] = {"Running": True}
        while state["Running"]:
            try:
                state = (await self.inspect())["State"]
            except EngineError as error:
                if error.data["status"] == 404:
                    # Somebody else removed it.
                    return CommandExit(None)
                raise
            await asyncio.sleep(0.005 if state["Running"] else 0)
        self.oom = self.oom or bool(state.get("OOMKilled"))
        if state.get("ExitCode") == _CANNOT_CONFINE and not self.oom:
            raise ConfinementError(
                "the init of the container could not confine itself, so nothing ran",
                hint="`agentbox doctor` examines the backend",
                step="container init",
                errno=0,
            )
        self.fell_silent = True
        return CommandExit(None)

    def _keep(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def kill_at_once(found: Mapping[str, Any]) -> None:
    """Kill what holds all of a container, as the engine knows it, where that is a process of this host's: the engine
    starts a program of the runtime's for that, which takes a fifth of a second or more. Never raises."""
    kill_member(int(found["State"]["Pid"]), f"/{found['Id']}")


def program_bytes(argv: Sequence[str], env: Mapping[str, str], cwd: str, *, on_terminal: bool = False) -> bytes:
    """A program as the init reads it (native/box_init.c)."""
    words = [cwd, str(len(argv)), *argv, *(f"{name}={value}" for name, value in env.items())]
    text = b"".join(os.fsencode(word) + b"\0" for word in words)
    return struct.pack("<I", len(text) | (_ON_TERMINAL if on_terminal else 0)) + text
