# SPDX-License-Identifier: MIT
"""A command in a box behind a server. What it wrote is fetched when it is waited for or read, and kept here."""

from __future__ import annotations

import asyncio
import contextlib
import signal as signals
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any

from agentbox.errors import AgentboxError, SandboxGoneError
from agentbox.sandbox.command import DEFAULT_GRACE_SECONDS
from agentbox.sandbox.line import Line
from agentbox.sandbox.remote_events import follow_events
from agentbox.sandbox.spool import Spool
from agentbox.sandbox.texts import Excerpt, excerpt

# One question to the server takes no longer: what is between may end a connection on which nothing moves.
LONGEST_WAIT_SECONDS = 25.0
_MARGIN_SECONDS = 30.0


class Copy(Spool):
    """What was fetched of a spool of the server, at the same offsets; what that did not keep is not here either."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(tempfile.gettempdir(), max_bytes)
        self._gaps: list[tuple[int, int]] = []

    def skip(self, offset: int) -> None:
        """Go on at `offset`: what is before it is lost."""
        self.to_file()
        self._gaps.append((self.total, offset))
        self.total = offset

    def read(self, offset: int, size: int) -> tuple[int, bytes]:
        """See Spool."""
        for first, last in self._gaps:
            if first <= offset < last:
                offset = last
            elif offset < first:
                size = min(size, first - offset)
        return super().read(offset, size)


class RemoteCommand:
    """See command.Command. While it runs the server is asked for its end; `stdout` and `stderr` hold what was fetched
    so far: all that is kept once `wait` has said that it ended."""

    def __init__(
        self, line: Line, path: str, argv: Sequence[str], found: Mapping[str, Any], *, merged: bool, spool_bytes: int
    ) -> None:
        """`path` is the sandbox's, `found` the server's description of the command."""
        self.argv = tuple(argv)
        self.id = str(found["id"])
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.timed_out = False
        self.lost: str | None = None
        self.cpu_ms: float | None = None
        self.max_memory_bytes: int | None = None
        self.stdout: Spool = Copy(spool_bytes)
        self.stderr: Spool | None = None if merged else Copy(spool_bytes)
        self.over = False
        self._line = line
        self._path = f"{path}/commands/{self.id}"
        self._totals = [0, 0]
        self._elapsed: float | None = None
        self._began = self._heard = time.monotonic()
        self._input = asyncio.Lock()
        self._fetching = asyncio.Lock()
        self._sending: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._failure: Exception | None = None
        self._watching: asyncio.Task[None] | None = None
        self.learn(found)
        self._began = self._heard = time.monotonic() - float(found.get("elapsed_seconds") or 0.0)

    def watch(self) -> None:
        """See from now on that it has ended when it has. To be called on the loop; may be called twice."""
        if self.running and self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    @property
    def complete(self) -> bool:
        """Whether it has ended, and all that it had written by then is here."""
        return not self.running and all(
            spool is None or spool.total >= total
            for spool, total in zip((self.stdout, self.stderr), self._totals, strict=True)
        )

    def learn(self, found: Mapping[str, Any]) -> None:
        """Take over what the server says of it."""
        self.pid = found["pid"]
        self.exit_code = found["exit_code"]
        self.signal = found["signal"]
        self.timed_out = bool(found["timed_out"])
        self.lost = found["lost"]
        self.cpu_ms = found.get("cpu_ms")
        self.max_memory_bytes = found.get("max_memory_bytes")
        self.over = bool(found.get("closed"))
        self._totals = [int(found["stdout_bytes"]), int(found["stderr_bytes"] or 0)]
        if not found["running"]:
            self._elapsed = float(found["elapsed_seconds"])
            self._ended.set()

    def take(self, stdout: bytes, stderr: bytes) -> None:
        """Keep output that came with its description, where it is all of it."""
        for spool, data, total in ((self.stdout, stdout, self._totals[0]), (self.stderr, stderr, self._totals[1])):
            if spool is not None and not spool.total and len(data) == total:
                spool.append(data)

    # ---- what is known

    @property
    def running(self) -> bool:
        """Whether its process had not ended when the server was last asked."""
        return self.exit_code is None

    @property
    def elapsed_seconds(self) -> float:
        """Since its start, to now or to its end."""
        return self._elapsed if self._elapsed is not None else time.monotonic() - self._began

    @property
    def idle_seconds(self) -> float:
        """Since its last output that was seen here, or its start."""
        return time.monotonic() - self._heard

    async def refresh(self, seconds: float = 0.0) -> None:
        """Ask the server about it; it answers when the command has ended, or after so many seconds."""
        query = {"wait_seconds": f"{seconds:.3f}"} if seconds > 0 else {}
        self.learn(await self._line.ask_patiently("GET", self._path, query=query, seconds=seconds + _MARGIN_SECONDS))

    async def _watch(self) -> None:
        """See that it has ended when it has."""
        try:
            while self.running:
                await self.refresh(LONGEST_WAIT_SECONDS)
        except SandboxGoneError as error:
            self.lost = error.message
            self.signal = signals.SIGKILL
            self.exit_code = 128 + signals.SIGKILL
            self.over = True
        except (AgentboxError, OSError) as error:
            self._failure = error
        self._ended.set()

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until it has ended, at most so long; whether it has. Its output so far is here then. Raises SandboxError
        when the server was away for long."""
        if self.running and self._failure is not None:
            self._failure = None
            self._ended.clear()
            self._watching = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            await self.refresh()
        if self._failure is not None and self.running:
            raise self._failure
        with contextlib.suppress(SandboxGoneError):
            await self.fetch()
        return not self.running

    async def wait_closed(self, seconds: float | None = None) -> bool:
        """As `wait`, until nobody holds its output any more."""
        try:
            async with asyncio.timeout(seconds):
                while await self._fetch_stream(error=False, seconds=LONGEST_WAIT_SECONDS):
                    pass
        except TimeoutError:
            return False
        return await self.wait()

    async def more(self, offset: int, *, error: bool = False) -> None:
        """Wait until its stdout is longer than `offset`, or never will be."""
        spool = self._spool(error=error)
        while spool.total <= offset:
            if not await self._fetch_stream(error=error, seconds=LONGEST_WAIT_SECONDS):
                return

    # ---- its output

    def _spool(self, *, error: bool) -> Copy:
        spool = self.stderr if error and self.stderr is not None else self.stdout
        assert isinstance(spool, Copy)
        return spool

    async def fetch(self) -> None:
        """Bring here what it has written so far."""
        for error, total in enumerate(tuple(self._totals)):
            if (error and self.stderr is None) or self._spool(error=bool(error)).total >= total:
                continue
            while self._spool(error=bool(error)).total < total:
                before = self._spool(error=bool(error)).total
                await self._fetch_stream(error=bool(error))
                if self._spool(error=bool(error)).total == before:
                    break

    async def _fetch_stream(self, *, error: bool, seconds: float = 0.0) -> bool:
        """Bring here what came next, for which the server waits so long; whether more may come."""
        async with self._fetching:
            spool = self._spool(error=error)
            query: dict[str, object] = {"stream": "stderr" if error else "stdout", "offset": spool.total}
            if seconds > 0:
                query["wait_seconds"] = f"{seconds:.3f}"
            async with self._line.open(
                "GET", f"{self._path}/output", query=query, seconds=seconds + _MARGIN_SECONDS
            ) as answer:
                at = int(answer.headers["x-agentbox-offset"])
                if at > spool.total:
                    spool.skip(at)
                async for piece in answer.pieces(_MARGIN_SECONDS):
                    spool.append(piece)
                    self._heard = time.monotonic()
                closed = answer.headers["x-agentbox-closed"] == "true"
                return not closed or spool.total < int(answer.headers["x-agentbox-total"])

    async def read(self, offset: int = 0, size: int = 1 << 20, *, error: bool = False) -> tuple[int, bytes]:
        """Some of its output from `offset` on, as the server has it now, and where that begins."""
        if error and self.stderr is None:
            return offset, b""
        query: dict[str, object] = {"stream": "stderr" if error else "stdout", "offset": offset, "limit": size}
        async with self._line.open("GET", f"{self._path}/output", query=query) as answer:
            return int(answer.headers["x-agentbox-offset"]), await answer.read()

    async def output(self, *, error: bool = False) -> bytes:
        """All that is kept of one of its streams."""
        if error and self.stderr is None:
            return b""
        if not self.over:
            await self.refresh()
        with contextlib.suppress(SandboxGoneError):
            await self.fetch()
        return self._spool(error=error).all()

    def whole_output(self, *, error: bool = False) -> bytes | None:
        """See command.Command.whole_output."""
        if error and self.stderr is None:
            return b""
        return self._spool(error=error).small() if self.over and self.complete else None

    async def follow(self) -> AsyncIterator[tuple[str, bytes]]:
        """Its output as it comes; see command.Command.follow."""
        async for kind, found in follow_events(self._line, self._path):
            if kind == "exit":
                self.learn(found)
            else:
                yield kind, found

    def text(self, begin: int = 0) -> Excerpt:
        """What it wrote since a byte, as far as it was fetched."""
        return excerpt(self.stdout, begin, final=not self.running)

    # ---- its input and its end

    async def send(self, data: bytes) -> None:
        """Write to its stdin; waits while it does not read. Raises SandboxError when it has ended."""
        async with self._input:
            await self._line.ask("POST", f"{self._path}/stdin", body=data, seconds=None)

    def close_stdin(self) -> None:
        """It reads the end of file after what was sent."""
        self._do(self._close_stdin())

    async def _close_stdin(self) -> None:
        async with self._input:
            await self._line.ask("POST", f"{self._path}/stdin", query={"close": "true"}, body=b"")

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        self._do(self._line.ask("POST", f"{self._path}/resize", value={"rows": rows, "columns": columns}))

    def send_signal(self, number: int) -> None:
        """Send a signal to its process group. Raises ValueError for a number that is none."""
        self._do(self._line.ask("POST", f"{self._path}/signal", value={"signal": signals.Signals(number).name}))

    def _do(self, work: Coroutine[Any, Any, Any]) -> None:
        """Have something done; nothing happens when it is too late for it."""

        async def do() -> None:
            with contextlib.suppress(AgentboxError, OSError):
                await work

        task = asyncio.create_task(do())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def kill(self, grace_seconds: float = DEFAULT_GRACE_SECONDS) -> int:
        """End it with everything that it started. Returns how many processes are left."""
        answer = await self._line.ask(
            "POST",
            f"{self._path}/kill",
            value={"grace_seconds": grace_seconds},
            seconds=grace_seconds + _MARGIN_SECONDS,
        )
        left = int(answer["survivors"])
        await self.refresh()
        await self.fetch()
        return left

    def close(self) -> None:
        """Give up what is kept of its output here."""
        for task in (*self._sending, self._watching):
            if task is not None:
                task.cancel()
        self.stdout.close()
        if self.stderr is not None:
            self.stderr.close()
