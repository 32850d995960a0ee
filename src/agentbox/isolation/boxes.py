# SPDX-License-Identifier: MIT
"""The owner's side of the launcher: asyncio handles of the launcher process and of the boxes it builds."""

from __future__ import annotations

import errno
import os
import stat
import sys

from agentbox.errors import ConfinementError, IsolationError
from agentbox.isolation.channel import Channel
from agentbox.isolation.plan import fits
from agentbox.light import asyncio, contextlib, signal, socket
from agentbox.records import asdict, dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, TypeVar

    _T = TypeVar("_T")

    from agentbox.isolation.launcher.forked import Forked
    from agentbox.isolation.plan import LaunchPlan, WorkspaceView

_START_TIMEOUT_SECONDS = 20
_BUILD_TIMEOUT_SECONDS = 30
_GONE_TIMEOUT_SECONDS = 15
_REAPED_POLL_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class CommandExit:
    """How a program in a box ended. `status` is a wait(2) status; None when the whole box was killed under it."""

    status: int | None
    cpu_ms: float | None = None
    max_rss_bytes: int | None = None
    processes: int | None = None


class Launcher:
    """The launcher process of this owner; started at the first box, started again when it dies."""

    def __init__(self) -> None:
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._starting: asyncio.Lock | None = None
        self._adopted: socket.socket | None = None
        self._begun: socket.socket | None = None
        self._skeleton: LaunchPlan | None = None

    @property
    def pid(self) -> int | None:
        """PID of the launcher process, None when there is none."""
        return self._process.pid if self._process else None

    def adopt(
        self, process: Forked, sock: socket.socket, begun: socket.socket, skeleton: LaunchPlan | None = None
    ) -> None:
        """Use a launcher that this process forked, and for the first box the one that it was told to begin, as the
        skeleton says if there is one."""
        self._process = process
        self._adopted = sock
        self._begun = begun
        self._skeleton = skeleton

    def has_begun(self, plan: LaunchPlan) -> bool:
        """Whether the box of this plan was begun already, and so has joined its control groups."""
        return self._begun is not None and (self._skeleton is None or fits(plan, self._skeleton))

    async def _ensure(self) -> Channel:
        if self._starting is None:
            self._starting = asyncio.Lock()
        async with self._starting:
            if self._adopted is not None:
                self._channel, self._adopted = Channel(self._adopted), None
            if self._begun is not None and (self._process is None or self._process.poll() is not None):
                # The control groups of the box that it was to begin hold nothing.
                self.drop()
                raise IsolationError("the launcher process has ended", hint="its own message is on stderr")
            if self._channel is not None and self._process is not None and self._process.poll() is None:
                return self._channel
            self.drop()
            import subprocess

            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            with theirs:
                self._process = subprocess.Popen(  # noqa: ASYNC220 - a spawn of some milliseconds, once
                    [sys.executable, "-I", "-S", "-B", os.path.join(os.path.dirname(__file__), "launcher", "main.py"),
                     str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env={"PATH": "/usr/bin:/bin"},
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )  # fmt: skip
            self._channel = Channel(ours)
            try:
                async with asyncio.timeout(_START_TIMEOUT_SECONDS):
                    first = await self._channel.receive()
            except TimeoutError:
                first = None
            if first is None:
                self.drop()
                raise IsolationError("the launcher process did not start", hint="its own message is on stderr")
            return self._channel

    async def build(
        self,
        plan: LaunchPlan,
        cgroup_fds: Sequence[int] = (),
        on_spawn: Callable[[dict[str, Any]], None] | None = None,
        network_fds: Sequence[int] = (),
    ) -> Box:
        """A new box, confined and waiting for its first program. `on_spawn` gets what the exec judge reports, where
        the plan has one. `network_fds` are the namespaces that the plan says it joins.

        Raises ConfinementError (with `step` and `errno`) when the kernel refused a step; nothing is left then.
        """
        channel = await self._ensure()
        of_it = self.has_begun(plan)
        begun, self._begun = self._begun, None
        skeleton, self._skeleton = self._skeleton, None
        theirs = None
        if begun is not None and not of_it:
            await channel.send({"forget": True})
            begun.close()
            begun = None
        if begun is None:
            begun, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        box = Box(Channel(begun), plan)
        judge_ends: list[int] = []
        if plan.judge:
            verdicts, judge_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            box.listen_to_judge(Channel(verdicts), on_spawn)
            judge_ends.append(judge_end.detach())
        try:
            try:
                if theirs is None and skeleton is not None:
                    await channel.send({"plan": asdict(plan)}, judge_ends)
                elif theirs is None:
                    await box.send_plan([*judge_ends, *network_fds, *cgroup_fds])
                else:
                    with theirs:
                        given = [theirs.fileno(), *judge_ends, *network_fds, *cgroup_fds]
                        await channel.send({"box": asdict(plan)}, given)
            finally:
                # A box that fails is gone when its judge's socket ends, which this process must not hold open.
                for fd in judge_ends:
                    os.close(fd)
            async with asyncio.timeout(_BUILD_TIMEOUT_SECONDS):
                await box.built()
        except TimeoutError:
            await box.destroy()
            raise ConfinementError(
                f"the box was not ready after {_BUILD_TIMEOUT_SECONDS} s", step="timeout", errno=errno.ETIMEDOUT
            ) from None
        except OSError as error:
            await box.destroy()
            self.drop()
            raise IsolationError(f"the launcher process is gone: {error}", hint="try again; it is restarted") from error
        except BaseException:
            await box.destroy()
            raise
        return box

    async def start_nursery(self, nursery: dict[str, Any], descriptors: Sequence[int]) -> socket.socket:
        """Have a nursery made (launcher/nursery.py); returns the owner's end of its socket, which ends it when it is
        closed. Raises IsolationError when there is no launcher."""
        channel = await self._ensure()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                await channel.send({"nursery": nursery}, [theirs.fileno(), *descriptors])
        except OSError as error:
            ours.close()
            raise IsolationError(f"the launcher process is gone: {error}", hint="try again; it is restarted") from error
        return ours

    def let_go(self) -> None:
        """Begin to end the launcher, when the last box is gone; `drop` or `close` waits for it."""
        if self._process is not None:
            self._process.kill()

    def drop(self) -> None:
        """End the launcher, without an event loop; see `close`."""
        if self._process is not None and self._process.poll() is None:
            # Before its sockets, of whose end it would complain.
            self._process.kill()
        for sock in (self._begun, self._adopted):
            if sock is not None:
                sock.close()
        self._begun = self._adopted = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.wait()
            self._process = None

    async def close(self) -> None:
        """End the launcher. Boxes are destroyed by their owners; any that is left dies with its own socket."""
        await asyncio.to_thread(self.drop)


class Box:
    """One box. It is gone, with everything that ever ran in it, when `destroy` returns.

    `channel` is the listener on which the box's guards connect, where the plan has one; `unix_listeners` are those at
    the paths that the plan names. The owner serves them; they are closed with the box.
    """

    def __init__(self, channel: Channel, plan: LaunchPlan) -> None:
        self.plan = plan
        self.workspace_fd = -1
        self.oom = False
        self.fell_silent = False
        self.processes: int | None = None
        self.channel: socket.socket | None = None
        self.unix_listeners: dict[str, socket.socket] = {}
        self._channel = channel
        self.pidfd = -1  # Of its own first process, -1 when it is gone.
        self._next_id = 0
        self._pids: dict[int, int] = {}
        self._started: dict[int, asyncio.Future[list[int]]] = {}
        self._exits: dict[int, asyncio.Future[CommandExit]] = {}
        self._gone = asyncio.Event()
        self._swept = asyncio.Event()
        self._init_lost = False
        self._pump: asyncio.Task[None] | None = None
        self._verdicts: Channel | None = None
        self._listener: asyncio.Task[None] | None = None

    async def send_plan(self, descriptors: Sequence[int]) -> None:
        """Send the plan to a box that was announced before. Raises OSError when it is gone."""
        await self._channel.send({"box": asdict(self.plan)}, descriptors)

    async def built(self) -> None:
        """Wait until the init says that the box is ready, or that its workspace waits to be filled."""
        ready = begun = False
        # The init can be faster than the process that announces it.
        while not ready or self.pidfd < 0:
            taken = await self._channel.receive()
            if taken is None:
                raise ConfinementError("the box died while it was built", step="unknown", errno=0)
            message, descriptors = taken
            if "error" in message:
                raise ConfinementError(
                    f"the box could not be built: {message['error']}",
                    hint="`agentbox doctor` names what this host is missing",
                    step=message["step"],
                    errno=message["errno"],
                )
            if "forked" in message:
                self.pidfd = descriptors[0]
                asyncio.get_running_loop().add_reader(self.pidfd, self._died)
            elif "listening" in message:
                self.unix_listeners[message["listening"]] = socket.socket(fileno=descriptors[0])
            elif "staged" in message:
                self.workspace_fd = descriptors[0]
                ready = True
            elif "ready" in message:
                if self.plan.staged:
                    # The one that came first sees the whole workspace.
                    os.close(descriptors[0])
                else:
                    self.workspace_fd = descriptors[0]
                if len(descriptors) > 1:
                    self.channel = socket.socket(fileno=descriptors[1])
                ready = begun = True
        if begun:
            self._pump = asyncio.create_task(self._read())

    async def show(self, view: WorkspaceView) -> None:
        """Say what a staged box shows of its workspace, and wait until it is ready. Raises ConfinementError."""
        try:
            await self._channel.send({"view": asdict(view)})
            async with asyncio.timeout(_BUILD_TIMEOUT_SECONDS):
                await self.built()
        except (OSError, TimeoutError) as error:
            raise ConfinementError(
                f"the box did not become ready: {error!r}", step="show workspace", errno=getattr(error, "errno", 0)
            ) from error

    async def judged(self) -> None:
        """Wait until everything that the exec judge saw was handed over; it ends with the programs of the box."""
        if self._listener is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GONE_TIMEOUT_SECONDS):
                    await asyncio.shield(self._listener)

    def listen_to_judge(self, channel: Channel, on_spawn: Callable[[dict[str, Any]], None] | None) -> None:
        """Hand each report of the exec judge to `on_spawn`, until the judge has ended."""

        async def listen() -> None:
            while (taken := await channel.receive()) is not None:
                if on_spawn is not None:
                    for report in taken[0]["reports"]:
                        on_spawn(report)

        self._verdicts = channel
        self._listener = asyncio.create_task(listen())

    async def decide_on_changes(self, *, allowed: bool) -> None:
        """Tell the exec judge whether there is a checkpoint, and calls that wait for it may go on. Raises OSError."""
        if self._verdicts is not None:
            await self._verdicts.send({"checkpoint": allowed})

    def _died(self) -> None:
        asyncio.get_running_loop().remove_reader(self.pidfd)
        self._gone.set()

    async def _read(self) -> None:
        while (taken := await self._channel.receive()) is not None:
            message, descriptors = taken
            if "started" in message:
                self._pids[message["started"]] = message["pid"]
                self._settle(self._started, message["started"], descriptors)
            elif "failed" in message:
                error = OSError(message["errno"], message["text"])
                started = self._started.pop(message["failed"], None)
                if started is not None and not started.done():
                    started.set_exception(error)
                self._exits.pop(message["failed"], None)
            elif "exit" in message:
                ended = CommandExit(
                    message["status"], message["cpu_ms"], message["max_rss_bytes"], message["processes"]
                )
                self._settle(self._exits, message["exit"], ended)
            elif "oom" in message:
                self.oom = True
            elif "swept" in message:
                self._swept.set()
        self._init_lost = True
        for started in self._started.values():
            if not started.done():
                started.set_exception(OSError(errno.ESRCH, "the box is gone"))
        for exited in self._exits.values():
            if not exited.done():
                exited.set_result(CommandExit(None))
        self._swept.set()

    @staticmethod
    def _settle(waiting: dict[int, asyncio.Future[_T]], key: int, value: _T) -> None:
        future = waiting.pop(key, None)
        if future is not None and not future.done():
            future.set_result(value)

    async def start(
        self, argv: Sequence[str], env: dict[str, str], cwd: str, stdio: Sequence[int]
    ) -> asyncio.Future[CommandExit]:
        """Start a program with the three descriptors of `stdio`; the future resolves when it has ended.

        Raises OSError with the reason when it cannot be executed.
        """
        return (await self.start_with_signals(argv, env, cwd, stdio))[1]

    async def start_with_signals(
        self, argv: Sequence[str], env: dict[str, str], cwd: str, stdio: Sequence[int]
    ) -> tuple[int, asyncio.Future[CommandExit]]:
        """As `start`, and returns the program's id for `signal` too."""
        key, ended, _ = await self._start({"argv": list(argv), "env": env, "cwd": cwd}, stdio)
        return key, ended

    async def start_on_terminal(
        self,
        argv: Sequence[str],
        env: dict[str, str],
        cwd: str,
        size: tuple[int, int],
        instead: Mapping[int, int] | None = None,
    ) -> tuple[int, asyncio.Future[CommandExit], int]:
        """Start a program on a new terminal of the box with that many (rows, columns).

        `instead` gives descriptors of the caller for those of 0, 1 and 2 that are not to be the terminal. Returns the
        program's id for `signal`, the future of its end, and the terminal's other end, which the caller closes. Raises
        OSError with the reason when the program cannot be executed.
        """
        kept = dict(instead or {})
        message = {"argv": list(argv), "env": env, "cwd": cwd, "tty": size, "tty_instead": list(kept)}
        key, ended, (master,) = await self._start(message, list(kept.values()))
        return key, ended, master

    def pid_of(self, key: int) -> int:
        """The process of a program that was started, as this process sees it; 0 in a box with processes of its own."""
        return 0 if self.plan.namespaces else self._pids.get(key, 0)

    def pid_inside(self, key: int) -> int:
        """The process of a program that was started, as the box's own kernel numbers it."""
        return self._pids.get(key, 0)

    async def signal(self, key: int, number: int) -> None:
        """Send a signal to the process group of a program."""
        await self._channel.send({"signal": {"id": key, "number": number}})

    async def _start(
        self, command: dict[str, Any], stdio: Sequence[int]
    ) -> tuple[int, asyncio.Future[CommandExit], list[int]]:
        self._next_id += 1
        key = self._next_id
        loop = asyncio.get_running_loop()
        started: asyncio.Future[list[int]] = loop.create_future()
        ended: asyncio.Future[CommandExit] = loop.create_future()
        self._started[key] = started
        self._exits[key] = ended
        if self.plan.host_uid is not None and os.geteuid() == 0:
            for fd in stdio:
                # The guest opens /dev/stdout and its like through /proc, which asks the pipe's owner and mode.
                if stat.S_ISFIFO(os.fstat(fd).st_mode):
                    os.fchown(fd, self.plan.host_uid, self.plan.host_gid)
        await self._channel.send({"exec": {"id": key, **command}}, stdio)
        return key, ended, await started

    def kill(self) -> None:
        """Begin killing everything in the box; `destroy` waits for the end of it."""
        if self.plan.namespaces and self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    async def kill_programs(self) -> None:
        """Kill everything that runs in the box and wait until it is gone. The workspace stays readable."""
        if self.plan.namespaces:
            self.kill()
            if self.pidfd >= 0:
                async with asyncio.timeout(_GONE_TIMEOUT_SECONDS):
                    await self._gone.wait()
            return
        if self._pump is None:
            # The box was given up while it was built: it runs nothing, and nobody would read its answer.
            return
        async with asyncio.timeout(_GONE_TIMEOUT_SECONDS):
            try:
                await self._channel.send({"kill": True})
                await self._swept.wait()
            except OSError:
                self._init_lost = True
            if self._init_lost:
                await self._reaped()

    @property
    def alive(self) -> bool:
        """Whether programs can be started in it, as far as is known."""
        return not self._init_lost and not self._gone.is_set()

    async def sweep(self) -> None:
        """Kill everything that runs in the box, which stays. Raises OSError when it is gone."""
        self._swept.clear()
        await self._channel.send({"kill": True})
        async with asyncio.timeout(_GONE_TIMEOUT_SECONDS):
            await self._swept.wait()
        if self._init_lost:
            raise ProcessLookupError(errno.ESRCH, "the box is gone")

    async def trace(self, points: Sequence[Mapping[str, Any]], descriptor: int) -> None:
        """Have the kernel of a gVisor box report to a socket. Raises OSError with the reason when it will not."""
        await self._start({"trace": list(points)}, [descriptor])

    async def _reaped(self) -> None:
        """Wait until the launcher took note of the init's death: only when nothing that it left is alive."""
        while self.pidfd >= 0:
            try:
                signal.pidfd_send_signal(self.pidfd, 0)
            except ProcessLookupError:
                return
            await asyncio.sleep(_REAPED_POLL_SECONDS)

    async def destroy(self) -> None:
        """Kill what runs, wait until it is gone, release the workspace. May be called twice; does not raise."""
        with contextlib.suppress(TimeoutError):
            await self.kill_programs()
        self._channel.close()
        if self._verdicts is not None and self._listener is not None:
            # The judge ends with the init; what it said before is still in the socket.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GONE_TIMEOUT_SECONDS):
                    await self._listener
            self._verdicts.close()
        if self._pump is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._pump
        if self.pidfd >= 0:
            if not self._gone.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_GONE_TIMEOUT_SECONDS):
                        await self._gone.wait()
                asyncio.get_running_loop().remove_reader(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = -1
        if self.channel is not None:
            self.channel.close()
        for listener in self.unix_listeners.values():
            listener.close()
        if self.workspace_fd >= 0:
            os.close(self.workspace_fd)
            self.workspace_fd = -1
