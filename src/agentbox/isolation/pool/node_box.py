# SPDX-License-Identifier: MIT
"""A Node that waits in a box of its own, started and warm, for what to run."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentbox.errors import IsolationError
from agentbox.isolation.boxes import CommandExit
from agentbox.isolation.pool.line import MAX_MESSAGE_BYTES, Line
from agentbox.isolation.pool.nursery import socket_pair, words
from agentbox.isolation.pool.waiting import within
from agentbox.linux.credentials import acting_as

if TYPE_CHECKING:
    from agentbox.isolation.pool.box import PooledBox, WarmProgram

_SCRIPT = Path(__file__).parent.parent.parent / "guest" / "warm.cjs"
# Beside the guest's main.js, and gone before that comes. As .cjs it makes Node look for no package.json, whose absence
# it would remember.
_NAME = "main.cjs"
_START_SECONDS = 30
_HEAD_BYTES = 4096
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL

# What Node, its libraries or the C library read when they start or print for the first time, by the beginnings of the
# names, and one that only sounds like it.
_COLD_NAMES = (
    "NODE_", "UV_", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_", "TZ", "ICU_", "OPENSSL_", "SSL_", "V8_", "FORCE_COLOR",
    "NO_COLOR",
)  # fmt: skip
_WARM_NAMES = frozenset({"NODE_ENV"})


class WaitingNode:
    """One process of Node. Its standard streams were made with it: `streams` gives the owner's ends. It serves once.

    `on_gone` is called when it ends before it was used.
    """

    def __init__(self, program: WarmProgram) -> None:
        self.program = program
        self._line: Line | None = None
        self._readers: tuple[int, ...] = ()
        self._stdin = -1
        self._used = False
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[CommandExit] = loop.create_future()
        self.on_gone: Callable[[], None] = lambda: None

    async def start(self, box: PooledBox) -> None:
        """Start it in a box in which nothing runs yet, and wait until it is warm. Raises IsolationError."""
        mine, theirs = socket_pair()
        self._line = Line(mine, self._received, self._lost)
        ends: list[int] = []
        try:
            self._stdin = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            for _ in range(2):
                read, write = os.pipe2(os.O_CLOEXEC)
                self._readers += (read,)
                ends.append(write)
                os.set_blocking(read, False)
            _place(box)
            script = f"{box.plan.workspace}/{_NAME}"
            argv = [*self.program.argv[:-1], script]
            with theirs:
                streams = (self._stdin, *ends)
                exited = await box.execute(argv, self.program.env, streams, (theirs.fileno(),))
            exited.add_done_callback(self._exited)
            await within(self._ready, _START_SECONDS)
            os.unlink(_NAME, dir_fd=box.workspace_fd)
        except TimeoutError:
            self.close()
            raise IsolationError("a warm Node did not become ready", hint="try again") from None
        except OSError as error:
            self.close()
            raise IsolationError(f"a warm Node cannot be started: {error}", hint="try again") from error
        except BaseException:
            self.close()
            raise
        finally:
            for fd in ends:
                os.close(fd)

    def _received(self, op: str, key: int, numbers: Sequence[int], text: bytes, fds: list[int]) -> None:
        """What it says. Once it runs a guest's code, that is what a guest says: believed as far as it concerns itself,
        and only once."""
        del key, text
        for fd in fds:
            os.close(fd)
        if not self._ready.done():
            if op == "r":
                self._ready.set_result(None)
            return
        if self._line is not None:
            self._line.close()
        if self._used and op == "x":
            if not self._ended.done():
                self._ended.set_result(CommandExit((numbers[0] & 255) << 8))
        elif not self._used:
            self.on_gone()

    def _lost(self) -> None:
        if not self._ready.done():
            self._ready.set_exception(IsolationError("a warm Node ended", hint="try again"))
            # Nobody may be waiting any more.
            self._ready.exception()
        elif not self._used:
            self.on_gone()

    def _exited(self, exited: asyncio.Future[CommandExit]) -> None:
        if not self._ended.done() and not exited.cancelled():
            self._ended.set_result(exited.result())

    @property
    def fresh(self) -> bool:
        """Whether it waits, unharmed."""
        return (
            not self._used
            and self._ready.done()
            and self._line is not None
            and not self._line.closed
            and not self._ended.done()
        )

    def streams(self, stdin: bytes) -> tuple[int, int]:
        """Give it what it shall read; returns non-blocking descriptors, the caller's from now on, of what it writes to
        stdout and stderr."""
        fd, self._stdin = self._stdin, -1
        try:
            # Not by write(2): the place where the next read begins is the program's too.
            at = 0
            while at < len(stdin):
                at += os.pwrite(fd, memoryview(stdin)[at:], at)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        finally:
            os.close(fd)
        (stdout, stderr), self._readers = self._readers, ()
        return stdout, stderr

    def run(self, argv: Sequence[str], env: Mapping[str, str]) -> asyncio.Future[CommandExit]:
        """Have it run the guest's file, after `streams`; the future tells how it ended. Raises OSError when it is
        gone."""
        if self._line is None or self._line.closed:
            raise BrokenPipeError("the warm Node is gone")
        more = {name: value for name, value in env.items() if self.program.env.get(name) != value}
        text, counts = words(argv[len(self.program.argv) :], more)
        self._used = True
        self._line.send("R", 0, counts, text)
        return self._ended

    def close(self) -> None:
        """Give up what it holds of this process; the box ends the rest. May be called twice."""
        if self._line is not None:
            self._line.close()
        fds, self._readers = self._readers, ()
        for fd in fds:
            os.close(fd)
        fd, self._stdin = self._stdin, -1
        if fd >= 0:
            os.close(fd)


def accepts(program: WarmProgram, argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a Node that was started as `program` can still become this one."""
    asked = {name: value for name, value in env.items() if name not in _WARM_NAMES}
    if not program.accepts(argv, asked, cold_names=_COLD_NAMES):
        return False
    try:
        # It has them from JavaScript, whose strings hold no other bytes.
        text = "\0".join((*argv, *env, *env.values())).encode()
    except UnicodeEncodeError:
        return False
    return len(text) < MAX_MESSAGE_BYTES - _HEAD_BYTES - 2 * len(env)


def _place(box: PooledBox) -> None:
    with acting_as(box.plan.host_uid, box.plan.host_gid):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(_NAME, flags, 0o644, dir_fd=box.workspace_fd)
        with contextlib.closing(os.fdopen(fd, "wb")) as file:
            file.write(_SCRIPT.read_bytes())
