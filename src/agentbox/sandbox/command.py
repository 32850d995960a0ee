# SPDX-License-Identifier: MIT
"""A command in a sandbox: its output from byte 0, its input, its end."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence

from agentbox.errors import SandboxError
from agentbox.sandbox import frames
from agentbox.sandbox.command_record import CommandRecord
from agentbox.sandbox.following import follow
from agentbox.sandbox.frames import FrameError, ToAgent, ToHost
from agentbox.sandbox.link import AgentLink
from agentbox.sandbox.spool import Spool
from agentbox.sandbox.texts import Excerpt, excerpt

DEFAULT_GRACE_SECONDS = 5.0
_KILL_MARGIN_SECONDS = 15
_STDIN_PIECE_BYTES = 1 << 16
_SIGKILL = 9


class Command:
    """Made by `AsyncSandbox.exec`. Its attributes may be read at any time; they change while it runs.

    `pid` is its process in the box, `exit_code` None while it runs and 128+n after signal n, `timed_out` whether its
    own timeout ended it, `lost` why its end is not known (the agent or the box died under it). `stdout` and `stderr`
    are spools; `stderr` is None where both go to stdout. `elapsed_seconds` ends with it.
    """

    def __init__(self, argv: Sequence[str], stdout: Spool, stderr: Spool | None) -> None:
        self.argv = tuple(argv)
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.timed_out = False
        self.lost: str | None = None
        self.cpu_ms: float | None = None
        self.max_memory_bytes: int | None = None
        self.stdout = stdout
        self.stderr = stderr
        self.last_output = self.started = time.monotonic()
        self.number = 0
        # What becomes of it is told to this, where its sandbox has a trace.
        self.record: CommandRecord | None = None
        self._link: AgentLink | None = None
        self._ended_at: float | None = None
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._closed = asyncio.Event()
        self._over = asyncio.Event()
        self._killed: asyncio.Future[int] | None = None
        self._input_room = frames.INPUT_WINDOW_BYTES
        self._room_made = asyncio.Event()
        self._changed = asyncio.Event()
        self._timer: asyncio.Task[None] | None = None

    # ---- beginning

    def begin(self, link: AgentLink) -> int:
        """Take an id on the link."""
        self._link = link
        self.number = link.new_id(self)
        return self.number

    async def begun(self) -> None:
        """Wait until it has started, or is lost. Raises OSError with the reason when it cannot be started."""
        await asyncio.shield(self._begun)

    def end_after(self, seconds: float) -> None:
        """Kill it when it runs longer."""

        async def end() -> None:
            await asyncio.sleep(seconds)
            if self.running:
                self.timed_out = True
                await self.kill()

        self._timer = asyncio.create_task(end())

    # ---- what the agent says

    def hear(self, kind: ToHost, payload: bytes) -> None:
        """One frame of the agent about it. Raises FrameError, OSError when the host's disk is full."""
        if kind is ToHost.STDOUT or kind is ToHost.STDERR:
            spool = self.stdout if kind is ToHost.STDOUT or self.stderr is None else self.stderr
            spool.append(payload)
            if self.record is not None:
                self.record.wrote(payload, error=spool is not self.stdout)
            self.last_output = time.monotonic()
            self._linked.taken(self.number, len(payload))
            self._changed.set()
        elif kind is ToHost.STARTED:
            self.pid = frames.read_number(payload)
            if not self._begun.done():
                self._begun.set_result(None)
        elif kind is ToHost.EXIT:
            self._exit(*frames.read_exit(payload))
        elif kind is ToHost.TAKEN:
            self._input_room = min(self._input_room + frames.read_number(payload), frames.INPUT_WINDOW_BYTES)
            self._room_made.set()
        elif kind is ToHost.KILLED:
            if self._killed is not None and not self._killed.done():
                self._killed.set_result(frames.read_number(payload))
        elif kind is ToHost.CLOSED:
            self._closed.set()
            if self.record is not None:
                self.record.closed(self)
        elif kind is ToHost.OVER:
            self._finish()
        elif kind is ToHost.FAILED:
            self._fail(frames.read_number(payload), payload[4:].decode(errors="replace"))
        else:
            raise FrameError(f"a frame of type {kind} about a command")

    def _exit(self, status: int, cpu_us: int, rss: int) -> None:
        if os.WIFSIGNALED(status):
            self.signal = os.WTERMSIG(status)
            code = 128 + self.signal
        else:
            code = os.WEXITSTATUS(status)
        self.cpu_ms = cpu_us / 1000
        self.max_memory_bytes = rss
        self._end(code)
        if self.record is not None:
            self.record.ended(self)

    def _end(self, code: int) -> None:
        if self.exit_code is None:
            self.exit_code = code
            self._ended_at = time.monotonic()
        if self._timer is not None and self._timer is not asyncio.current_task() and not self.timed_out:
            self._timer.cancel()
        if not self._begun.done():
            self._begun.set_result(None)
        self._ended.set()
        self._room_made.set()
        self._changed.set()

    def _finish(self) -> None:
        self._linked.forget(self.number)
        self._closed.set()
        self._over.set()
        if self.record is not None:
            self.record.closed(self)
        self._changed.set()
        if self._killed is not None and not self._killed.done():
            self._killed.set_result(0)

    def _fail(self, code: int, text: str) -> None:
        if not self._begun.done():
            reason = text.rpartition(": ")[0] or text
            self._begun.set_exception(OSError(code, os.strerror(code), reason))
            # Nobody may be waiting.
            self._begun.exception()
        self._end(127)
        self._finish()

    def lose(self, why: str) -> None:
        """The agent is gone, and with it whatever this was. It may have been this command that ended it, before it
        could say that the command has started: that is no error, and nothing to try again."""
        unended = self.exit_code is None
        if unended:
            self.lost = why if self.pid is not None else f"{why}, before it said that the command has started"
            self.signal = _SIGKILL
        self._end(128 + _SIGKILL)
        if unended and self.record is not None:
            self.record.ended(self)
        self._finish()

    @property
    def _linked(self) -> AgentLink:
        assert self._link is not None
        return self._link

    # ---- for its owner

    @property
    def running(self) -> bool:
        """Whether its process has not ended."""
        return self.exit_code is None

    @property
    def over(self) -> bool:
        """Whether nothing that it started runs any more, in the background or not."""
        return self._over.is_set()

    @property
    def output_closed(self) -> bool:
        """Whether nobody holds its output any more, so that no more of it comes."""
        return self._closed.is_set()

    @property
    def elapsed_seconds(self) -> float:
        """Since its start, to now or to its end."""
        return (self._ended_at or time.monotonic()) - self.started

    @property
    def idle_seconds(self) -> float:
        """Since its last output, or its start."""
        return time.monotonic() - self.last_output

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until it has ended, at most so long (None: as long as it takes); whether it has. Does not end it."""
        if self._ended.is_set():
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    async def wait_closed(self, seconds: float | None = None) -> bool:
        """As `wait`, until nobody holds its output any more."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return False
        return True

    async def more(self, offset: int, *, error: bool = False) -> None:
        """Wait until its stdout (its stderr for `error`) is longer than `offset`, or it has ended and its output is
        closed."""
        spool = self.stderr if error and self.stderr is not None else self.stdout
        while spool.total <= offset and not self._closed.is_set():
            self._changed.clear()
            await self._changed.wait()

    async def read(self, offset: int = 0, size: int = 1 << 20, *, error: bool = False) -> tuple[int, bytes]:
        """At most `size` bytes of its stdout, or of its stderr, from `offset` on, and where they begin: later where
        that is not kept."""
        spool = self.stderr if error else self.stdout
        return (offset, b"") if spool is None else spool.read(offset, size)

    async def output(self, *, error: bool = False) -> bytes:
        """All that is kept of its stdout, or of its stderr; empty for a stderr that goes to stdout."""
        spool = self.stderr if error else self.stdout
        return b"" if spool is None else spool.all()

    def whole_output(self, *, error: bool = False) -> bytes | None:
        """What `output` would say, to any thread; None where that is to be asked of the loop: more may come, or it is
        much."""
        if not self.output_closed:
            return None
        spool = self.stderr if error else self.stdout
        return b"" if spool is None else spool.small()

    def follow(self) -> AsyncIterator[tuple[str, bytes]]:
        """Its output as it comes: ("stdout" or "stderr", some bytes) from the beginning, until it has ended."""
        return follow(self)

    def text(self, begin: int = 0) -> Excerpt:
        """What it wrote since the byte `begin` (to both streams where they are merged); see texts.excerpt."""
        return excerpt(self.stdout, begin, final=not self.running)

    async def send(self, data: bytes) -> None:
        """Write to its stdin; waits while it does not read. Raises SandboxError when it has ended."""
        view = memoryview(data)
        while view:
            while self._input_room <= 0 and self.running:
                self._room_made.clear()
                await self._room_made.wait()
            if not self.running:
                raise SandboxError("the command has ended, so nobody reads its input", hint="start another command")
            piece = view[: min(_STDIN_PIECE_BYTES, self._input_room)]
            self._input_room -= len(piece)
            self._linked.send(frames.frame(ToAgent.STDIN, self.number, bytes(piece)))
            if self.record is not None:
                self.record.was_sent(len(piece))
            view = view[len(piece) :]

    def close_stdin(self) -> None:
        """It reads the end of file after what was sent."""
        self._linked.send(frames.frame(ToAgent.STDIN_END, self.number))

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        self._linked.send(frames.resize(self.number, rows, columns))

    def send_signal(self, number: int) -> None:
        """Send a signal to its process group."""
        self._linked.send(frames.frame(ToAgent.SIGNAL, self.number, bytes([number])))
        if self.record is not None:
            self.record.signalled(number, self.pid)

    async def kill(self, grace_seconds: float = DEFAULT_GRACE_SECONDS) -> int:
        """End it with everything that it started: TERM, and KILL to what is left after the grace. Returns how many
        processes are left, 0 as a rule; raises SandboxError when the agent does not answer."""
        if self._over.is_set():
            return 0
        if self._killed is None or self._killed.done():
            self._killed = asyncio.get_running_loop().create_future()
        self._linked.send(frames.number(ToAgent.KILL, self.number, round(grace_seconds * 1000)))
        left: int | None = None
        try:
            async with asyncio.timeout(grace_seconds + _KILL_MARGIN_SECONDS):
                left = await asyncio.shield(self._killed)
                if not left:
                    await self._ended.wait()
        except TimeoutError:
            raise SandboxError(
                "the agent in the box does not confirm that the command has ended", hint="reset the sandbox"
            ) from None
        finally:
            if self.record is not None:
                self.record.killed(grace_seconds, left, self.pid)
        return left

    def close(self) -> None:
        """Give up what is kept of its output."""
        if self._timer is not None:
            self._timer.cancel()
        self.stdout.close()
        if self.stderr is not None:
            self.stderr.close()
