# SPDX-License-Identifier: MIT
"""A box that a maker made: what boxes.Box is for one that the launcher built."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import socket
import stat
from collections.abc import Mapping, Sequence

from agentbox.errors import IsolationError
from agentbox.isolation.boxes import CommandExit
from agentbox.isolation.plan import WorkspaceView
from agentbox.isolation.pool.line import MAX_MESSAGE_BYTES, Line
from agentbox.isolation.pool.node_box import WaitingNode, accepts
from agentbox.isolation.pool.nursery import MadeBox, Nursery, OnEnd, words
from agentbox.isolation.pool.waiting import within
from agentbox.records import dataclass

_COUNT_SECONDS = 5
_GONE_SECONDS = 15
_STREAMS = 2
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
        self._line_fd = made.line_fd
        self._readers = made.readers
        self._stdin_fd = -1
        self._entry: bytes | None = None
        # The last words that its child was found to take: each run's are asked about several times.
        self._taken: tuple[Sequence[str], Mapping[str, str], bytes, tuple[int, int]] | None = None
        self._warm: WarmProgram | None = None
        self._ended: asyncio.Future[CommandExit] | None = None
        # How its warm child was said to have been killed, until its init has said whether the program had ended before.
        self._killed: CommandExit | None = None
        self._commands: list[asyncio.Future[CommandExit]] = []
        self._silent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gone = asyncio.Event()
        self.waiting: WaitingNode | None = None
        # So many processes and threads the interpreter alone is.
        self.own_processes = 1
        nursery.follow(made, self._counted, self._died)

    @property
    def init_fd(self) -> int:
        """The pidfd of its init."""
        return self._made.init_fd

    # Made ready.

    def warmed(self, program: WarmProgram, ended: asyncio.Future[CommandExit]) -> None:
        """A warm child waits in it, whose end `ended` will tell."""
        self._warm = program
        self._ended = ended

    def reaped(self, status: int, cpu_ms: float, max_rss_bytes: int) -> None:
        """Its warm child has ended, says the zygote. Its init kills a child that has told its exit code, and may be
        heard later: of a child that was killed the init is asked first."""
        ended = self._ended
        if ended is None or ended.done():
            return
        if status >= 0 and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and not self._silent.done():
            self._killed = CommandExit(status, cpu_ms, max_rss_bytes)
            self._ask_to_end()
            return
        told_end(ended)(status, cpu_ms, max_rss_bytes)

    @property
    def fresh(self) -> bool:
        """Whether its warm child waits, unharmed, for what to run."""
        ended = self._ended
        lives = ended is not None and not ended.done() and self._killed is None and not self._gone.is_set()
        return lives and self._warm is not None

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
        if self._warm is not None and not self.fresh:
            raise _ended_early("its warm child was killed")
        taken, ended = self._words(argv, env), self._ended
        if taken is not None and ended is not None:
            self._warm = None
            if self._stdin_fd >= 0:
                stdio = (self._stdin_fd,)
            op, (text, counts) = "R" if self._entry is None else "C", taken
            try:
                self._tell(op, (*counts, self.process_limit), text + (self._entry or b""), stdio)
            except OSError as error:
                raise _ended_early(str(error)) from error
            self._close_line()
            self._commands.append(ended)
            return ended
        return await self._execute(argv, env, stdio)

    def _tell(self, op: str, numbers: Sequence[int], text: bytes, descriptors: Sequence[int]) -> None:
        """Say something to the warm child. Raises OSError."""
        message = Line.pack(op, 0, numbers) + text
        if not descriptors:
            os.write(self._line_fd, message)
            return
        with socket.socket(fileno=os.dup(self._line_fd)) as line:
            socket.send_fds(line, [message], list(descriptors))

    def _close_line(self) -> None:
        for fd in (self._line_fd, self._stdin_fd):
            if fd >= 0:
                os.close(fd)
        self._line_fd = self._stdin_fd = -1

    def ready_streams(self, argv: Sequence[str], env: Mapping[str, str], stdin: bytes) -> tuple[int, int] | None:
        """See LiveBox."""
        node = self.waiting
        if node is not None:
            return node.streams(stdin) if node.fresh and accepts(node.program, argv, env) else None
        if len(self._readers) != _STREAMS or self._words(argv, env) is None:
            return None
        if stdin:
            self._stdin_fd = sealed_file(stdin)
        (stdout, stderr), self._readers = self._readers, ()
        return stdout, stderr

    def entrust(self, argv: Sequence[str], env: Mapping[str, str], content: bytes) -> bool:
        """See LiveBox."""
        taken = self._words(argv, env) if self._line_fd >= 0 else None
        if taken is None or len(taken[0]) + len(content) > MAX_WORDS_BYTES:
            return False
        self._entry = content
        return True

    def _words(self, argv: Sequence[str], env: Mapping[str, str]) -> tuple[bytes, tuple[int, int]] | None:
        """What its warm child is told of these, where it can become this program; else None."""
        program, taken = self._warm, self._taken
        if program is None or not self.fresh:
            return None
        if taken is not None and taken[0] == argv and taken[1] == env:
            return taken[2], taken[3]
        if not program.accepts(argv, env, cold_names=COLD_NAMES):
            return None
        text, counts = words(argv[len(program.argv) :], program.beyond(env))
        if len(text) > MAX_WORDS_BYTES:
            return None
        self._taken = argv, env, text, counts
        return text, counts

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

        try:
            try:
                os.set_blocking(write, True)
                self._nursery.execute(
                    self._made, argv, env, stdio, write, self._joins, self.process_limit, told_end(ended), further
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
            self._ask_to_end()
            try:
                await within(self._silent, _COUNT_SECONDS)
            except TimeoutError:
                self.kill()
                await self.taken_apart()
        if self.processes != self.own_processes:
            await self.taken_apart()

    def _ask_to_end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._made.init_fd, signal.SIGUSR1)

    def _counted(self, processes: int, code: int) -> None:
        """Everything in it was ended by its init: when it was told to, or when the program told its exit code, before
        its process is taken apart. A guest may tell it: that is believed as far as it concerns itself, and once."""
        self.processes = processes
        end = CommandExit(code << 8) if code >= 0 else self._killed
        if end is not None and self._ended is not None and not self._ended.done():
            self._ended.set_result(end)
        if not self._silent.done():
            self._silent.set_result(None)

    def _died(self) -> None:
        self._gone.set()
        if not self._silent.done():
            self._silent.set_result(None)
        if self._killed is not None and self._ended is not None and not self._ended.done():
            # Its init was killed too, and says nothing any more.
            self._ended.set_result(self._killed)
        for ended in (*self._commands, *([self._ended] if self._ended is not None else ())):
            # The one who reaps it knows more, and says it a moment later; only if that one is gone too, this stands.
            if not ended.done():
                asyncio.get_running_loop().call_later(_GONE_SECONDS, _lost, ended)

    async def taken_apart(self) -> None:
        """Wait until no process of it is left, after `kill_programs`. Raises TimeoutError."""
        if not self._gone.is_set():
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
        self._close_line()
        if self.waiting is not None:
            self.waiting.close()
        fd, self.workspace_fd = self.workspace_fd, -1
        readers, self._readers = self._readers, ()
        for one in (fd, self._made.init_fd, *readers):
            os.close(one)


# What an interpreter, the C library or a library loaded in advance reads when it starts.
COLD_NAMES = (
    "PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_", "TZ", "OMP_", "OPENBLAS_", "MKL_", "NUMEXPR_", "OPENSSL_",
    "SSL_",
)  # fmt: skip


def told_end(ended: asyncio.Future[CommandExit]) -> OnEnd:
    """What a zygote calls when the child of which `ended` tells has ended."""

    def on_end(status: int, cpu_ms: float, max_rss_bytes: int) -> None:
        if not ended.done():
            ended.set_result(CommandExit(None) if status < 0 else CommandExit(status, cpu_ms, max_rss_bytes))

    return on_end


def sealed_file(content: bytes) -> int:
    """A descriptor to read `content` from that nobody can change."""
    fd = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


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
