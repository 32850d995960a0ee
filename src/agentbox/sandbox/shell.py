# SPDX-License-Identifier: MIT
"""The three shell tools: one command at a time, whose output each answer tells once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import time
from collections.abc import Awaitable, Callable

from agentbox.errors import AgentboxError
from agentbox.sandbox.command import DEFAULT_GRACE_SECONDS, Command
from agentbox.sandbox.results import (
    COMPLETED,
    KILLED,
    NOTHING_RUNS,
    RUNNING,
    ShellResult,
    busy,
    rejected,
    seconds,
)

_KILLED = 128 + signal.SIGKILL
_STUCK = (
    "the command cannot be started: every process that the sandbox may have is in use by what earlier commands left "
    "running. Use shell_kill to stop all of that."
)
Start = Callable[[str], Awaitable[Command]]


class Shell:
    """Begins commands with `start`. Any number of calls may be made at once; one command runs at a time."""

    def __init__(self, start: Start, default_seconds: float) -> None:
        self._start = start
        self._default = default_seconds
        self._starting = asyncio.Lock()
        self._current: Command | None = None
        self._read = 0
        # Whether the last command could not start because every process of the box is in use.
        self._stuck = False
        self._earlier: list[Command] = []

    @property
    def current(self) -> Command | None:
        """The command whose end was not told yet."""
        return self._current

    async def execute(self, command: str, timeout: float | None = None) -> ShellResult:
        """Run a shell command and wait for it at most so long (None: the default), which only stops the waiting."""
        async with self._starting:
            current = self._current
            if current is not None and current.running:
                return busy(current.elapsed_seconds)
            try:
                current = await self._start(command)
            except (AgentboxError, OSError, ValueError) as error:
                self._stuck = isinstance(error, OSError) and error.errno == errno.EAGAIN
                return rejected(_STUCK if self._stuck else _reason(error))
            self._current, self._read = current, 0
            self._stuck = False
            self._earlier = [one for one in self._earlier if not one.over] + [current]
        return await self._answer(current, timeout)

    async def wait(self, timeout: float | None = None) -> ShellResult:
        """Wait on for the command that runs."""
        current = self._current
        if current is None:
            return rejected(NOTHING_RUNS)
        return await self._answer(current, timeout)

    async def kill(self, grace_seconds: float = DEFAULT_GRACE_SECONDS) -> ShellResult:
        """End the command that runs, with everything that it started: TERM, and KILL after the grace."""
        current = self._current
        if current is None and self._stuck:
            return await self._kill_earlier()
        if current is None:
            return rejected(NOTHING_RUNS)
        if not current.running:
            return self._ended(current)
        begun = time.monotonic()
        try:
            left = await current.kill(grace_seconds)
        except AgentboxError:
            left = 1
        took = time.monotonic() - begun
        if left:
            note = f"could not confirm exit after {seconds(took)}"
        elif took >= grace_seconds or current.signal == 9:
            note = f"SIGKILL after {seconds(took)}"
        else:
            note = f"SIGTERM after {seconds(took)}"
        if current.running:
            text, characters = self._news(current)
            return ShellResult(text, None, KILLED, note, current.elapsed_seconds, current.idle_seconds, characters)
        return self._ended(current, note)

    async def _kill_earlier(self) -> ShellResult:
        """End what earlier commands left running, since nothing can be started beside it."""
        begun = time.monotonic()
        left = 0
        for command in [one for one in self._earlier if not one.over]:
            with contextlib.suppress(AgentboxError):
                left += await command.kill(0)
        self._stuck = left > 0
        took = seconds(time.monotonic() - begun)
        note = f"could not confirm exit after {took}" if left else f"SIGKILL after {took}"
        return ShellResult("", None if left else _KILLED, KILLED, note)

    def forget(self) -> None:
        """The box is another one now."""
        self._current = None
        self._stuck = False
        self._earlier.clear()

    async def _answer(self, command: Command, timeout: float | None) -> ShellResult:
        if await command.wait(self._default if timeout is None else max(0.0, timeout)):
            return self._ended(command)
        text, characters = self._news(command)
        return ShellResult(text, None, RUNNING, "", command.elapsed_seconds, command.idle_seconds, characters)

    def _ended(self, command: Command, note: str = "") -> ShellResult:
        text, characters = self._news(command)
        if self._current is command:
            self._current = None
        if command.lost is not None and not note:
            note = f"ended with the agent of the box: {command.lost}"
        return ShellResult(
            text,
            command.exit_code,
            KILLED if note else COMPLETED,
            note,
            command.elapsed_seconds,
            command.idle_seconds,
            characters,
        )

    def _news(self, command: Command) -> tuple[str, int]:
        """What was not told yet; another answer may have told it."""
        if self._current is not command:
            return "", 0
        found = command.text(self._read)
        self._read = found.end
        return found.text, found.characters


def _reason(error: Exception) -> str:
    if isinstance(error, AgentboxError):
        return f"{error.message}{f' ({error.hint})' if error.hint else ''}"
    if isinstance(error, OSError):
        return f"the command cannot be started: {error.filename or 'it'}: {error.strerror}"
    return str(error)
