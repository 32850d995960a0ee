# SPDX-License-Identifier: MIT
"""Commands in a box of a server, with this process's input, output and terminal."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from agentbox.cli import exit_codes
from agentbox.cli.console import fail, say
from agentbox.errors import SandboxError
from agentbox.sandbox.writing import write_all

if TYPE_CHECKING:
    from agentbox.cli.server_options import Server
    from agentbox.sandbox.asynchronous import AsyncSandbox
    from agentbox.sandbox.core import SandboxCommand

_PIECE_BYTES = 1 << 16


async def execute(
    server: Server,
    sandbox_id: str,
    words: tuple[str, ...],
    *,
    interactive: bool,
    tty: bool,
    detach: bool,
    as_json: bool,
    cwd: str | None,
    env: Mapping[str, str],
    user: str | None,
    timeout: float | None,
) -> int:
    """Run a command; the exit code to end with. Raises SandboxError, OSError."""
    words = _without_dashes(words)
    box = await server.attach(sandbox_id)
    try:
        command = await _begin(
            box,
            words[0] if len(words) == 1 else list(words),
            timeout=timeout,
            wait=0,
            stdin=interactive,
            cwd=cwd,
            env=env,
            user=user,
            merged=False,
            terminal=_size() if tty else None,
        )
        if detach:
            said = {"id": getattr(command, "id", ""), "pid": command.pid}
            click.echo(json.dumps(said) if as_json else said["id"])
            return exit_codes.OK
        with _interrupts(command), _raw_terminal(wanted=tty and interactive):
            feeding = asyncio.create_task(_feed(command)) if interactive else None
            if tty:
                _follow_size(command)
            output = {"stdout": bytearray(), "stderr": bytearray()}
            async for stream, data in command.follow():
                if as_json:
                    output[stream] += data
                else:
                    write_all(2 if stream == "stderr" else 1, data)
            if feeding is not None:
                feeding.cancel()
        await command.wait()
        if as_json:
            click.echo(json.dumps(_told(command, output)))
        elif command.lost:
            say(f"the command's end is not known: {command.lost}")
        elif command.timed_out:
            say(f"the command was ended after {timeout:g} s")
        return exit_codes.FAILURE if command.exit_code is None else command.exit_code
    finally:
        await box.stop()


def _without_dashes(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words after `--`, which may stand before them."""
    return words[1:] if words[:1] == ("--",) and len(words) > 1 else words


async def _begin(box: AsyncSandbox, command: str | list[str], **how: Any) -> SandboxCommand:
    """Start it; what cannot be started ends us as it would end a shell."""
    try:
        return await box.exec(command, **how)
    except FileNotFoundError as error:
        fail(f"{error.filename}: {error.strerror}", "", exit_codes.NO_PROGRAM)
    except PermissionError as error:
        fail(f"{error.filename}: {error.strerror}", "", exit_codes.NOT_EXECUTABLE)


def _told(command: SandboxCommand, output: Mapping[str, bytearray]) -> dict[str, Any]:
    told: dict[str, Any] = {
        name: getattr(command, name) for name in ("exit_code", "signal", "timed_out", "lost", "cpu_ms")
    }
    told["elapsed_seconds"] = round(command.elapsed_seconds, 3)
    for stream, data in output.items():
        told[stream] = data.decode("utf-8", "replace")
        try:
            data.decode()
        except UnicodeDecodeError:
            told[f"{stream}_b64"] = base64.b64encode(data).decode()
    return told


async def shell(server: Server, sandbox_id: str, words: tuple[str, ...], *, cwd: str | None, user: str | None) -> int:
    """Relay this terminal; the exit code to end with. Raises SandboxError, OSError."""
    words = _without_dashes(words)
    box = await server.attach(sandbox_id)
    try:
        how: dict[str, Any] = {"wait": 0, "stdin": True, "cwd": cwd, "user": user, "terminal": _size()}
        how["env"] = {"TERM": _terminal_name()}
        if words:
            command = await _begin(box, list(words), **how)
        else:
            try:
                command = await box.exec(["bash"], **how)
            except FileNotFoundError:
                command = await _begin(box, ["sh"], **how)
        with _raw_terminal(wanted=True):
            feeding = asyncio.create_task(_feed(command))
            _follow_size(command)
            try:
                async for _, data in command.follow():
                    write_all(1, data)
            finally:
                feeding.cancel()
        await command.wait()
        return exit_codes.FAILURE if command.exit_code is None else command.exit_code
    finally:
        await box.stop()


def _terminal_name() -> str:
    from agentbox.config import process_environment

    return process_environment().get("TERM", "xterm-256color")


def _size() -> tuple[int, int]:
    for fd in (1, 0, 2):
        with contextlib.suppress(OSError):
            found = os.get_terminal_size(fd)
            if found.lines and found.columns:
                return found.lines, found.columns
    return 24, 80


def _follow_size(command: SandboxCommand) -> None:
    """Have the command's terminal change with this one."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, lambda: command.resize(*_size()))


async def _feed(command: SandboxCommand) -> None:
    """Give it our input until that ends, or the command does. What comes while a piece is on its way goes together."""
    loop = asyncio.get_running_loop()
    pending = bytearray()
    came = asyncio.Event()
    ended = False

    def read() -> None:
        nonlocal ended
        try:
            data = os.read(0, _PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            ended = True
            loop.remove_reader(0)
        pending.extend(data)
        if len(pending) > 4 * _PIECE_BYTES:
            loop.remove_reader(0)
        came.set()

    def watch() -> bool:
        try:
            loop.add_reader(0, read)
        except PermissionError:
            # A file cannot be waited for; it can always be read.
            return False
        return True

    waits = watch()
    try:
        while not ended or pending:
            if not waits:
                pending += await asyncio.to_thread(os.read, 0, _PIECE_BYTES)
                ended = not pending
            elif not pending:
                came.clear()
                await came.wait()
            if pending:
                data = bytes(pending)
                pending.clear()
                await command.send(data)
                if waits and not ended:
                    watch()
        command.close_stdin()
    except SandboxError:
        # It ended before it had read everything.
        return
    finally:
        if waits:
            loop.remove_reader(0)


@contextlib.contextmanager
def _raw_terminal(*, wanted: bool) -> Iterator[None]:
    """Have every key come as it is, and go to the box."""
    if not wanted or not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _interrupts(command: SandboxCommand) -> Iterator[None]:
    """Pass Ctrl-C on to the command, whose end is then ours; the second time it is killed."""
    loop = asyncio.get_running_loop()
    killing: list[asyncio.Task[int]] = []
    passed: list[int] = []

    def interrupt(number: int) -> None:
        if passed:
            killing.append(asyncio.ensure_future(command.kill(0)))
        else:
            command.send_signal(number)
        passed.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt, int(number))
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
