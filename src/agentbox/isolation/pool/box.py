# SPDX-License-Identifier: MIT
"""A box that a maker made: what boxes.Box is for one that the launcher built."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import stat
from collections.abc import Mapping, Sequence

from agentbox.errors import ConfinementError, IsolationError
from agentbox.isolation.boxes import CommandExit
from agentbox.isolation.plan import WorkspaceView
from agentbox.isolation.pool.line import MAX_MESSAGE_BYTES, Line
from agentbox.isolation.pool.node_box import WaitingNode, accepts
from agentbox.isolation.pool.nursery import MadeBox, Nursery, socket_pair, words
from agentbox.isolation.pool.waiting import within
from agentbox.isolation.pool.zygote import Zygote
from agentbox.records import dataclass

_CHILD_SECONDS = 30
_COUNT_SECONDS = 5
_GONE_SECONDS = 15
# Below the limit of a message, with room for its head.
MAX_WORDS_BYTES = MAX_MESSAGE_BYTES - 4096


@dataclass(frozen=True, slots=True)
class WarmProgram:
    """What a warm child can become: this interpreter with this file, in this environment and more of it. `started_with`
    is what its interpreter has of it when it starts, where that is less."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    started_with: Mapping[str, str] | None = None

    def accepts(self, argv: Sequence[str], env: Mapping[str, str], *, cold_names: tuple[str, ...]) -> bool:
        """Whether it can. Variables that an interpreter reads when it starts, by the beginnings of their names
        `cold_names`, come too late for it."""
        if tuple(argv[: len(self.argv)]) != self.argv or not env.keys() >= self.env.keys():
            return False
        return not any(name.startswith(cold_names) for name, value in env.items() if self.env.get(name, None) != value)

    def beyond(self, env: Mapping[str, str]) -> dict[str, str]:
        """What an environment has that the interpreter was not started with."""
        started = self.env if self.started_with is None else self.started_with
        return {name: value for name, value in env.items() if started.get(name) != value}


class PooledPlan:
    """What LiveBox asks of a plan; a LaunchPlan for each box would cost more than the question."""

    __slots__ = ("host_gid", "host_uid", "namespaces", "workspace")

    def __init__(self, workspace: str, host_uid: int, host_gid: int) -> None:
        self.workspace = workspace
        self.host_uid = host_uid
        self.host_gid = host_gid
        self.namespaces = True


class PooledBox:
    """One box of a nursery. `kill_programs` returns when nothing in it runs any more; `destroy` when it is gone."""

    def __init__(self, nursery: Nursery, made: MadeBox, joins: Sequence[int], processes: int) -> None:
        self.plan = PooledPlan(nursery.plan.workspace, made.host_uid, made.host_gid)
        self.oom = False
        self.fell_silent = False
        self.channel: socket.socket | None = None
        self.unix_listeners: dict[str, socket.socket] = {}
        self.workspace_fd = made.workspace_fd
        self.processes: int | None = None
        self.process_limit = processes
        self._nursery = nursery
        self._made = made
        self._joins = tuple(joins)
        self._child: Line | None = None
        self._report = -1
        self._warm: WarmProgram | None = None
        self._child_ready: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[CommandExit] | None = None
        self._commands: list[asyncio.Future[CommandExit]] = []
        self._silent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gone = asyncio.Event()
        self.waiting: WaitingNode | None = None
        # So many processes and threads the interpreter alone is.
        self.own_processes = 1
        nursery.counted(made, self._counted)
        asyncio.get_running_loop().add_reader(made.init_fd, self._died)

    # Made ready.

    async def warm(self, zygote: Zygote, program: WarmProgram) -> None:
        """Have a warm child forked into it, and wait until it is ready. Raises IsolationError."""
        loop = asyncio.get_running_loop()
        mine, theirs = socket_pair()
        self._child_ready = ready = loop.create_future()
        self._ended = loop.create_future()
        self._child = Line(mine, self._from_child, self._child_gone)
        self._report, report = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            try:
                with theirs:
                    zygote.fork(self._made, theirs.fileno(), report, self._joins, self._child_ended)
            finally:
                os.close(report)
            await within(ready, _CHILD_SECONDS)
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise IsolationError("a warm child did not become ready", hint="try again") from None
            raise IsolationError(f"a warm child cannot be forked: {error}", hint="try again") from error
        self._warm = program

    def _from_child(self, op: str, key: int, numbers: Sequence[int], text: bytes, fds: list[int]) -> None:
        """What the child says before it has anything to run."""
        del key
        for fd in fds:
            os.close(fd)
        ready = self._child_ready
        if ready is None or ready.done():
            return
        if op == "r":
            ready.set_result(None)
        elif op == "e":
            step = text.decode(errors="replace")
            ready.set_exception(
                ConfinementError(
                    f"the box could not be built: {step}: {os.strerror(numbers[0])}",
                    hint="`agentbox doctor` names what this host is missing",
                    step=step,
                    errno=numbers[0],
                )
            )

    def _reported(self) -> None:
        """The program's exit code, before its process is taken apart. A guest may write it: it is believed as far as it
        concerns itself, and once. A pipe carries no descriptors, whose closing could take as long as a guest likes."""
        try:
            code = os.read(self._report, 1)
        except BlockingIOError:
            return
        self._close_report()
        if code and self._ended is not None and not self._ended.done():
            self._ended.set_result(CommandExit(code[0] << 8))

    def _close_report(self) -> None:
        fd, self._report = self._report, -1
        if fd >= 0:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)

    def _child_gone(self) -> None:
        if self._child_ready is not None and not self._child_ready.done():
            self._child_ready.set_exception(IsolationError("a warm child ended", hint="try again"))

    def _child_ended(self, status: int, cpu_ms: float, max_rss_bytes: int) -> None:
        self._child_gone()
        if self._ended is not None and not self._ended.done():
            lost = status < 0
            self._ended.set_result(CommandExit(None) if lost else CommandExit(status, cpu_ms, max_rss_bytes))

    @property
    def fresh(self) -> bool:
        """Whether its warm child waits, unharmed, for what to run."""
        return (
            self._warm is not None
            and self._child is not None
            and not self._child.closed
            and self._ended is not None
            and not self._ended.done()
            and not self._gone.is_set()
        )

    # Used, as a boxes.Box is.

    async def start(
        self, argv: Sequence[str], env: dict[str, str], cwd: str, stdio: Sequence[int]
    ) -> asyncio.Future[CommandExit]:
        """See boxes.Box. After `ready_streams` without `stdio`."""
        del cwd
        if self.waiting is not None and not stdio:
            answer = self.waiting.run(argv, env)
            self._commands.append(answer)
            return answer
        self._give(stdio)
        program, child, ended = self._warm, self._child, self._ended
        if program is not None and not self.fresh:
            raise _ended_early("its warm child was killed")
        if program is not None and child is not None and ended is not None and self.would_be_warm(argv, env):
            text, counts = words(argv[len(program.argv) :], program.beyond(env))
            if len(text) <= MAX_WORDS_BYTES:
                self._warm = None
                try:
                    child.send("R", 0, (*counts, self.process_limit), text, stdio)
                except OSError as error:
                    raise _ended_early(str(error)) from error
                child.finish()
                asyncio.get_running_loop().add_reader(self._report, self._reported)
                self._commands.append(ended)
                return ended
        return await self._execute(argv, env, stdio)

    def ready_streams(self, argv: Sequence[str], env: Mapping[str, str], stdin: bytes) -> tuple[int, int] | None:
        """See LiveBox."""
        node = self.waiting
        return node.streams(stdin) if node is not None and node.fresh and accepts(node.program, argv, env) else None

    def _give(self, stdio: Sequence[int]) -> None:
        if os.geteuid() == 0:
            for fd in stdio:
                # The guest opens /dev/stdout and its like through /proc, which asks the pipe's owner and mode.
                if stat.S_ISFIFO(os.fstat(fd).st_mode):
                    os.fchown(fd, self.plan.host_uid, self.plan.host_gid)

    async def execute(
        self, argv: Sequence[str], env: Mapping[str, str], stdio: Sequence[int], further: Sequence[int]
    ) -> asyncio.Future[CommandExit]:
        """Start a program that has one more descriptor than `start` gives, as its 3. Raises OSError."""
        self._give(stdio)
        return await self._execute(argv, env, stdio, further)

    def would_be_warm(self, argv: Sequence[str], env: Mapping[str, str]) -> bool:
        """Whether `start` of this would find its interpreter started."""
        return self.fresh and self._warm is not None and self._warm.accepts(argv, env, cold_names=COLD_NAMES)

    async def start_with_signals(
        self, argv: Sequence[str], env: dict[str, str], cwd: str, stdio: Sequence[int]
    ) -> tuple[int, asyncio.Future[CommandExit]]:
        """See boxes.Box. A pooled box serves single runs: nobody sends signals to parts of it."""
        raise NotImplementedError

    async def start_on_terminal(
        self,
        argv: Sequence[str],
        env: dict[str, str],
        cwd: str,
        size: tuple[int, int],
        instead: Mapping[int, int] | None = None,
    ) -> tuple[int, asyncio.Future[CommandExit], int]:
        """See boxes.Box. A pooled box has no terminals to give."""
        raise NotImplementedError

    async def signal(self, key: int, number: int) -> None:
        """See boxes.Box."""
        raise NotImplementedError

    async def _execute(
        self, argv: Sequence[str], env: Mapping[str, str], stdio: Sequence[int], further: Sequence[int] = ()
    ) -> asyncio.Future[CommandExit]:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[CommandExit] = loop.create_future()
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

        def on_end(status: int, cpu_ms: float, max_rss_bytes: int) -> None:
            if not ended.done():
                ended.set_result(CommandExit(None) if status < 0 else CommandExit(status, cpu_ms, max_rss_bytes))

        try:
            try:
                os.set_blocking(write, True)
                self._nursery.execute(
                    self._made, argv, env, stdio, write, self._joins, self.process_limit, on_end, further
                )
            except ValueError:
                raise OSError(errno.E2BIG, "arguments and environment are too long") from None
            finally:
                os.close(write)
            reason = await _to_end(read)
        except OSError as error:
            if self._gone.is_set() or not self._nursery.alive:
                raise _ended_early(str(error)) from error
            raise
        finally:
            os.close(read)
        if reason and (self._gone.is_set() or not self._nursery.alive):
            raise _ended_early(reason.decode(errors="replace"))
        if reason:
            code, _, step = reason.partition(b" ")
            number = int(code)
            raise OSError(number, f"{step.decode(errors='replace')}: {os.strerror(number)}")
        self._commands.append(ended)
        return ended

    async def show(self, view: WorkspaceView) -> None:
        """See boxes.Box. A pooled box shows its whole workspace."""
        raise NotImplementedError

    async def judged(self) -> None:
        """See boxes.Box. Nothing is judged here."""

    # Ended.

    async def decide_on_changes(self, *, allowed: bool) -> None:
        """Nothing waits: runs of a pool take no checkpoint."""

    def kill(self) -> None:
        """Begin killing everything in it."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._made.init_fd, signal.SIGKILL)

    @property
    def silent(self) -> bool:
        """Whether nothing in it runs guest code any more."""
        return self._silent.done()

    async def kill_programs(self) -> None:
        """Kill everything that runs in it. When this returns nothing there runs guest code any more, and nothing is
        left but, at most, one process that has ended by itself and is being taken apart; see `taken_apart`. The
        workspace stays readable."""
        if not self._silent.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._made.init_fd, signal.SIGUSR1)
            try:
                await within(self._silent, _COUNT_SECONDS)
            except TimeoutError:
                self.kill()
                await self.taken_apart()
        if self.processes != self.own_processes:
            await self.taken_apart()

    def _counted(self, processes: int) -> None:
        self.processes = processes
        if not self._silent.done():
            self._silent.set_result(None)

    def _died(self) -> None:
        asyncio.get_running_loop().remove_reader(self._made.init_fd)
        self._gone.set()
        if not self._silent.done():
            self._silent.set_result(None)
        for ended in (*self._commands, *([self._ended] if self._ended is not None else ())):
            # The one who reaps it knows more, and says it a moment later; only if that one is gone too, this stands.
            if not ended.done():
                asyncio.get_running_loop().call_later(_GONE_SECONDS, _lost, ended)

    async def taken_apart(self) -> None:
        """Wait until no process of it is left, after `kill_programs`."""
        async with asyncio.timeout(_GONE_SECONDS):
            await self._gone.wait()

    async def destroy(self) -> None:
        """Kill what runs, wait until it is gone, release the workspace. May be called twice; does not raise."""
        if self.workspace_fd < 0:
            return
        with contextlib.suppress(TimeoutError):
            if not self._gone.is_set():
                if not self._silent.done():
                    self.kill()
                await self.taken_apart()
        if not self._gone.is_set():
            asyncio.get_running_loop().remove_reader(self._made.init_fd)
        self._close_report()
        if self._child is not None:
            self._child.close()
        if self.waiting is not None:
            self.waiting.close()
        fd, self.workspace_fd = self.workspace_fd, -1
        os.close(fd)
        os.close(self._made.init_fd)


# What an interpreter, the C library or a library loaded in advance reads when it starts.
COLD_NAMES = (
    "PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_", "TZ", "OMP_", "OPENBLAS_", "MKL_", "NUMEXPR_", "OPENSSL_",
    "SSL_",
)  # fmt: skip


def _ended_early(why: str) -> IsolationError:
    """Whatever a caller would be told of the program would be wrong: it never was."""
    return IsolationError(f"the box ended before its program began: {why}", hint="nothing has run; try again")


def _lost(ended: asyncio.Future[CommandExit]) -> None:
    if not ended.done():
        ended.set_result(CommandExit(None))


async def _readable(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


async def _to_end(fd: int) -> bytes:
    """Everything that comes out of a pipe."""
    loop = asyncio.get_running_loop()
    text = b""
    while True:
        try:
            part = os.read(fd, 4096)
        except BlockingIOError:
            await _readable(loop, fd)
            continue
        if not part:
            return text
        text += part
