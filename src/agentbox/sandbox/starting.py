# SPDX-License-Identifier: MIT
"""How commands of a sandbox begin, and which of them are still known."""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from agentbox.errors import SandboxError
from agentbox.isolation.durable import WORKSPACE
from agentbox.sandbox import frames
from agentbox.sandbox.command import Command
from agentbox.sandbox.command_record import CommandRecord
from agentbox.sandbox.frames import StartFlag
from agentbox.sandbox.link import AgentLink
from agentbox.sandbox.spool import Spool

# Ended commands whose output is still kept.
_KEPT_COMMANDS = 64
_SHELLS = ("bash", "sh")


class StartFields(TypedDict, total=False):
    """How a command is started; see AsyncSandbox.exec."""

    stdin: bytes | bool
    cwd: str | None
    env: Mapping[str, str | None] | None
    user: str | None
    merged: bool
    terminal: tuple[int, int] | None


class Commands:
    """Those that run, and the last that have ended. `link` gives the stream to the agent, `make_spool` a place for one
    stream of output; `began` is told of each that has started, `record` of each before it is; `passed` says
    which variables a command may get."""

    def __init__(
        self,
        link: Callable[[], Awaitable[AgentLink]],
        make_spool: Callable[[], Spool],
        began: Callable[[Command], None] = lambda _: None,
        record: Callable[[Callable[[], dict[str, Any]]], CommandRecord | None] = lambda _: None,
        passed: Callable[[Mapping[str, str | None]], dict[str, str | None]] = dict,
    ) -> None:
        self._link = link
        self._make_spool = make_spool
        self._began = began
        self._record = record
        self._passed = passed
        self._known: dict[int, Command] = {}

    @property
    def known(self) -> tuple[Command, ...]:
        """Those that run, and the last that have ended."""
        return tuple(self._known.values())

    def busy(self) -> bool:
        """Whether any of them runs."""
        return any(command.running for command in self._known.values())

    def close(self) -> None:
        """Give up what is kept of all of them."""
        for command in self._known.values():
            command.close()
        self._known.clear()

    async def run(
        self,
        command: str | Sequence[str],
        *,
        timeout: float | None,
        wait: float | None,
        **how: Unpack[StartFields],
    ) -> Command:
        """Start a command, give it its input and wait for it; see AsyncSandbox.exec."""
        if isinstance(command, str):
            started = await self.start_in_shell(command, **how)
        else:
            started = await self.start(list(command), **how)
        if timeout is not None:
            started.end_after(timeout)
        stdin = how.get("stdin", False)
        if not isinstance(stdin, bool):
            with contextlib.suppress(SandboxError):
                await started.send(stdin)
            started.close_stdin()
        if wait is None or wait > 0:
            await started.wait(wait)
        return started

    async def start_in_shell(self, command: str, **how: Unpack[StartFields]) -> Command:
        """Start a text with the best shell that is left in the box. Raises as `start`."""
        for shell in _SHELLS:
            try:
                return await self.start([shell, "-c", command], **how)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EACCES, errno.ENOEXEC) or error.filename != shell:
                    raise
        raise FileNotFoundError(errno.ENOENT, "no shell is left in the box; reset the sandbox", " or ".join(_SHELLS))

    async def start(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | bool = False,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        user: str | None = None,
        merged: bool = True,
        terminal: tuple[int, int] | None = None,
    ) -> Command:
        """Start a list of words. Raises OSError with the reason, SandboxError, ValueError."""
        if not argv:
            raise ValueError("an empty command")
        link = await self._link()
        flags = StartFlag.NONE
        if stdin is not False:
            flags |= StartFlag.STDIN
        if terminal is not None:
            flags |= StartFlag.TERMINAL | StartFlag.MERGED
        elif merged:
            flags |= StartFlag.MERGED
        command = Command(
            argv,
            self._make_spool(),
            None if flags & StartFlag.MERGED else self._make_spool(),
        )
        environment = self._passed(env or {})
        if terminal is not None:
            environment.setdefault("TERM", "xterm-256color")
        directory = posixpath.normpath(posixpath.join(WORKSPACE, cwd or ""))

        def facts() -> dict[str, Any]:
            known = {
                "argv": list(command.argv),
                "cwd": directory,
                "user": user,
                "env": sorted(environment),
                "stdin": bool(flags & StartFlag.STDIN),
                "terminal": None if terminal is None else list(terminal),
            }
            return {name: value for name, value in known.items() if value}

        command.record = self._record(facts)
        number = command.begin(link)
        try:
            link.send(
                frames.start(
                    number,
                    argv,
                    flags=flags,
                    user=user or "",
                    directory=directory,
                    environment=environment,
                    size=terminal or (0, 0),
                )
            )
            self._keep(command)
            await command.begun()
        except BaseException as error:
            if command.record is not None:
                command.record.failed(error)
                command.record = None
            self._known.pop(id(command), None)
            if command.over or command.pid is None:
                link.forget(number)
            command.close()
            raise
        self._began(command)
        return command

    def _keep(self, command: Command) -> None:
        self._known[id(command)] = command
        if len(self._known) > _KEPT_COMMANDS:
            for key, old in list(self._known.items()):
                if old.over:
                    del self._known[key]
                    if len(self._known) <= _KEPT_COMMANDS:
                        break
