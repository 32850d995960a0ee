# SPDX-License-Identifier: MIT
"""The owner's side of one warm interpreter: forks children into boxes, hears how they end, and has a bounded life."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence

from agentbox.errors import ConfinementError, IsolationError
from agentbox.isolation.pool.line import Line
from agentbox.isolation.pool.nursery import MadeBox, Nursery, OnEnd, socket_pair

_START_SECONDS = 30
# The init, the workspace, the line to the child, and where its stdout and stderr come out.
_OF_A_BOX = 5
_log = logging.getLogger("agentbox.pool")
# Of what a module says while it is imported in advance, so much is kept.
_SAID_BYTES = 4096


class Zygote:
    """One warm interpreter. Its children share the hash seed and the layout of memory, so it serves one owner alone and
    is replaced after `max_forks` children or `max_seconds`."""

    def __init__(self, nursery: Nursery, owner: str, *, max_forks: int, max_seconds: float) -> None:
        self._nursery = nursery
        self.owner = owner
        self._max_forks = max_forks
        self._born_at = time.monotonic()
        self._max_seconds = max_seconds
        self._forks = 0
        self._line: Line | None = None
        self._key = 0
        # Of boxes whose child is not ready yet, who will have their descriptors.
        self._expected: dict[int, asyncio.Future[list[int]]] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ends: dict[int, OnEnd] = {}
        self._retired = False
        self._said = 0
        self.on_gone: Callable[[], None] = lambda: None

    async def start(self, path: str, env: Mapping[str, str]) -> None:
        """Start it and wait until it is warm. Raises IsolationError."""
        mine, theirs = socket_pair()
        self._line = Line(mine, self._received, self._lost)
        # A pipe, as a run has them: what the interpreter makes of its streams is what its children have.
        read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(write, True)
        asyncio.get_running_loop().add_reader(read, self._heard, read)
        with theirs:
            try:
                self._key = self._nursery.start_zygote(path, env, write, theirs.fileno(), mine.fileno(), self._ended)
            except OSError as error:
                self.close()
                raise IsolationError(f"a warm interpreter cannot be started: {error}", hint="try again") from error
            finally:
                os.close(write)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._ready
        except TimeoutError:
            self.close()
            raise IsolationError("a warm interpreter did not start", hint="the log has what it said") from None
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether it is warm and its end has not come."""
        return self._line is not None and not self._line.closed and self._ready.done() and not self._retired

    @property
    def spent(self) -> bool:
        """Whether it should be replaced."""
        return self._forks >= self._max_forks or time.monotonic() - self._born_at > self._max_seconds

    def _received(self, op: str, key: int, numbers: Sequence[int], text: bytes, fds: list[int]) -> None:
        expected = self._expected.pop(key, None)
        if expected is not None and not expected.done():
            if op == "r" and len(fds) == _OF_A_BOX:
                expected.set_result(fds)
                return
            expected.set_exception(refused(numbers, text) if op == "e" else ended_early())
        for fd in fds:
            os.close(fd)
        if op == "r" and not key:
            if not self._ready.done():
                self._ready.set_result(None)
        elif op == "x":
            ended = self._ends.pop(key, None)
            if ended is not None:
                ended(numbers[0], numbers[1] / 1000, numbers[2] * 1024)
            if self._retired and not self._ends:
                self.close()

    def _heard(self, read: int) -> None:
        """What it says on stdout and stderr; its last child to be ready holds the pipe too."""
        try:
            said = os.read(read, 1 << 16)
        except BlockingIOError:
            return
        if not said:
            asyncio.get_running_loop().remove_reader(read)
            os.close(read)
        for line in said[: max(0, _SAID_BYTES - self._said)].decode(errors="replace").splitlines():
            _log.warning("a warm interpreter says: %s", line)
        self._said += len(said)

    def _ended(self, status: int, cpu_ms: float, max_rss_bytes: int) -> None:
        del status, cpu_ms, max_rss_bytes
        self.close()

    def _lost(self) -> None:
        if not self._ready.done():
            self._ready.set_exception(IsolationError("a warm interpreter ended", hint="the log has what it said"))
            # Nobody may be waiting any more.
            self._ready.exception()
        expected, self._expected = self._expected, {}
        for one in expected.values():
            if not one.done():
                one.set_exception(ended_early())
        ends, self._ends = self._ends, {}
        for ended in ends.values():
            ended(-1, 0.0, 0)
        self.on_gone()

    async def make_box(
        self, disk_bytes: int, inodes: int, host_ids: tuple[int, int], joins: Sequence[int], on_end: OnEnd
    ) -> MadeBox:
        """A box in which a child waits, whose processes have those ids of the host and join the groups whose files
        `joins` are. `on_end` hears of the child's end, as in `fork`. Raises IsolationError."""
        if self._line is None or self._line.closed:
            raise ended_early()
        key, made = self._nursery.order("W", host_ids, disk_bytes, inodes, self._key, joins)
        self._forks += 1
        self._ends[key] = on_end
        self._expected[key] = made
        try:
            init, workspace, line, *readers = await self._nursery.delivered(key, made)
        except BaseException:
            self._ends.pop(key, None)
            raise
        finally:
            self._expected.pop(key, None)
        return MadeBox(key, *host_ids, init, workspace, readers=tuple(readers), line_fd=line)

    def fork(self, box: MadeBox, owner: int, further: Sequence[int], joins: Sequence[int], on_end: OnEnd) -> None:
        """A child in a box with pipes, whose owner's end is on the other side of `owner`; `further` is the judge's
        line. It joins the groups whose files `joins` are. `on_end` hears of its end, with status -1 when the zygote
        ended first. Raises OSError."""
        if self._line is None or self._line.closed:
            raise BrokenPipeError("the warm interpreter is gone")
        self._forks += 1
        self._ends[box.key] = on_end
        try:
            self._line.send("F", box.key, (), b"", (box.init_fd, owner, *box.writers, *further, *joins))
        except BaseException:
            self._ends.pop(box.key, None)
            raise

    def retire(self) -> None:
        """End it when its last child has ended."""
        self._retired = True
        if not self._ends:
            self.close()

    def close(self) -> None:
        """End it now: nobody will hear how its children end."""
        if self._line is not None and not self._line.closed:
            # It ends when nobody has this end of its socket any more.
            self._nursery.let_go_zygote(self._key)
            self._line.close()
            self._lost()


def ended_early() -> IsolationError:
    """A child, or the interpreter of which it would be one, ended before it was ready."""
    return IsolationError("a warm child ended", hint="try again")


def refused(numbers: Sequence[int], text: bytes, what: str = "built") -> ConfinementError:
    """What a child says of a step that the kernel refused."""
    step = text.decode(errors="replace")
    return ConfinementError(
        f"the box could not be {what}: {step}: {os.strerror(numbers[0])}",
        hint="`agentbox doctor` names what this host is missing",
        step=step,
        errno=numbers[0],
    )
