# SPDX-License-Identifier: MIT
"""A Node that waits in a box of its own, started and warm, for what to run."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentbox.errors import IsolationError
from agentbox.isolation.boxes import CommandExit
from agentbox.isolation.pool.line import Line
from agentbox.isolation.pool.nursery import words
from agentbox.isolation.pool.waiting import within
from agentbox.linux.credentials import acting_as

if TYPE_CHECKING:
    from agentbox.isolation.pool.box import PooledBox, WarmProgram

_SCRIPT = Path(__file__).parent.parent.parent / "guest" / "warm.cjs"
# Beside the guest's main.js, and gone before that comes. As .cjs it makes Node look for no package.json, whose absence
# it would remember.
_NAME = "main.cjs"
_START_SECONDS = 30
_REPORT = struct.Struct("=II4q")
# What a pipe holds, but for the head.
_MAX_WORDS_BYTES = 60 * 1024
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

    Two pipes lead to it and back. `on_gone` is called when it ends before it was used.
    """

    def __init__(self, program: WarmProgram) -> None:
        self.program = program
        self._readers: tuple[int, ...] = ()
        self._stdin = self._says = self._hears = -1
        self._used = False
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[int] = loop.create_future()
        self._ended: asyncio.Future[CommandExit] = loop.create_future()
        self.on_gone: Callable[[], None] = lambda: None

    async def start(self, box: PooledBox) -> None:
        """Start it in a box in which nothing runs yet, and wait until it is warm. Raises IsolationError."""
        ends: list[int] = []
        try:
            self._stdin = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            for _ in range(2):
                read, write = os.pipe2(os.O_CLOEXEC)
                self._readers += (read,)
                ends.append(write)
                os.set_blocking(read, False)
            hears, self._says = os.pipe2(os.O_CLOEXEC)
            ends.append(hears)
            self._hears, says = os.pipe2(os.O_CLOEXEC)
            ends.append(says)
            for fd in (self._says, self._hears):
                os.set_blocking(fd, False)
            asyncio.get_running_loop().add_reader(self._hears, self._received)
            _place(box)
            argv = [*self.program.argv[:-1], f"{box.plan.workspace}/{_NAME}"]
            exited = await box.execute(argv, self.program.env, (self._stdin, *ends[:2]), ends[2:])
            exited.add_done_callback(self._exited)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise IsolationError(f"a warm Node cannot be started: {error}", hint="try again") from error
            raise
        finally:
            for fd in ends:
                os.close(fd)
        try:
            box.own_processes = await within(self._ready, _START_SECONDS)
            os.unlink(_NAME, dir_fd=box.workspace_fd)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise IsolationError(f"a warm Node did not become ready: {error}", hint="try again") from error
            raise

    def _received(self) -> None:
        """What it says. Once it runs a guest's code, that is what a guest says: believed as far as it concerns itself,
        and only once."""
        try:
            message = os.read(self._hears, 4096)
        except BlockingIOError:
            return
        op, _, number, *_ = _REPORT.unpack(message) if len(message) == _REPORT.size else (0, 0, 0)
        if op == ord("r") and not self._ready.done():
            self._ready.set_result(number)
            return
        self._close_line()
        if not self._ready.done():
            self._ready.set_exception(IsolationError("a warm Node ended", hint="try again"))
            # Nobody may be waiting any more.
            self._ready.exception()
        elif not self._used:
            self.on_gone()
        elif op == ord("x") and not self._ended.done():
            self._ended.set_result(CommandExit((number & 255) << 8))

    def _close_line(self) -> None:
        hears, says, self._hears, self._says = self._hears, self._says, -1, -1
        if hears >= 0:
            asyncio.get_running_loop().remove_reader(hears)
            os.close(hears)
        if says >= 0:
            os.close(says)

    def _exited(self, exited: asyncio.Future[CommandExit]) -> None:
        if not self._ended.done() and not exited.cancelled():
            self._ended.set_result(exited.result())

    @property
    def fresh(self) -> bool:
        """Whether it waits, unharmed."""
        return not self._used and self._ready.done() and self._hears >= 0 and not self._ended.done()

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
        more = {name: value for name, value in env.items() if self.program.env.get(name) != value}
        text, counts = words(argv[len(self.program.argv) :], more)
        message = Line.pack("R", 0, (*counts, len(text))) + text
        self._used = True
        # An empty pipe has room for it: see `accepts`.
        if self._says < 0 or os.write(self._says, message) != len(message):
            raise BrokenPipeError("the warm Node is gone")
        fd, self._says = self._says, -1
        os.close(fd)
        return self._ended

    def close(self) -> None:
        """Give up what it holds of this process; the box ends the rest. May be called twice."""
        self._close_line()
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
    return len(text) < _MAX_WORDS_BYTES - 2 * len(env)


def _place(box: PooledBox) -> None:
    with acting_as(box.plan.host_uid, box.plan.host_gid):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(_NAME, flags, 0o644, dir_fd=box.workspace_fd)
        with contextlib.closing(os.fdopen(fd, "wb")) as file:
            file.write(_SCRIPT.read_bytes())
