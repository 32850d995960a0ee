# SPDX-License-Identifier: MIT
"""A sandbox whose box is a server's: made, attached to, used and removed over HTTP."""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from agentbox.errors import AgentboxError, PolicyError, SandboxError, SandboxGoneError
from agentbox.models import Denial, Enforcement, Layer
from agentbox.records import fields
from agentbox.sandbox.fetching import Fetched
from agentbox.sandbox.line import Line, NoAnswerError
from agentbox.sandbox.loops import call
from agentbox.sandbox.options import SandboxOptions
from agentbox.sandbox.remote_command import LONGEST_WAIT_SECONDS, RemoteCommand
from agentbox.sandbox.remote_files import RemoteFiles
from agentbox.sandbox.remote_state import RemoteState
from agentbox.sandbox.results import NOT_RUNNING, ShellResult, rejected
from agentbox.sandbox.starting import StartFields
from agentbox.sandbox.writing import write_all

# Input of more bytes goes on its own way.
_MAX_INLINE_INPUT_BYTES = 1 << 16
_KEPT_COMMANDS = 64
_MARGIN_SECONDS = 30.0
# A box may have to be built, an image be fetched.
_LIFE_SECONDS = 600.0


class RemoteSandbox(RemoteState):
    """See AsyncSandbox. One that has a `sandbox_id` was there before, and stays when it is stopped; `keep` lets also
    one that was made here stay."""

    def __init__(
        self, options: SandboxOptions, line: Line, sandbox_id: str | None = None, *, keep: bool = False
    ) -> None:
        if options.workspace is not None and os.sep in os.fspath(options.workspace):
            raise SandboxError(
                f"workspace {os.fspath(options.workspace)!r} is a directory of this machine, not of the server",
                hint="give the workspace a name, and copy files with `files.upload`",
            )
        if options.trace is not None and options.trace is not True:
            raise SandboxError(
                "a server keeps the trace of its sandboxes itself, every one of them",
                hint="leave `trace` out; `fetch_trace` copies it",
            )
        self.options = options
        self._line = line
        self.files = RemoteFiles(line, lambda: self._path)
        self._id: str | None = None
        self._wanted = sandbox_id
        self._stays = keep or sandbox_id is not None
        self._told: Mapping[str, Any] = {}
        self._commands: dict[str, RemoteCommand] = {}

    # ---- life

    async def start(self) -> None:
        """Make the box on the server, or find it there. Raises SandboxError, PolicyError."""
        if self._id is not None:
            return
        try:
            if self._wanted is not None:
                told = await self._line.ask("GET", f"/{checked_id(self._wanted)}")
            else:
                told = await self._line.ask("POST", "", value=self._request(), seconds=_LIFE_SECONDS)
        except (SandboxError, PolicyError):
            raise
        except (AgentboxError, OSError) as error:
            raise SandboxError(f"failed to start sandbox: {error}", hint=getattr(error, "hint", "")) from error
        self._learn(told)

    def _request(self) -> dict[str, Any]:
        options, limits = self.options, self.options.limits
        wanted: dict[str, Any] = {
            "backend": options.backend,
            "image": options.image,
            "memory_mb": limits.memory_mb,
            "cpus": limits.cpus,
            "pids": limits.pids,
            "disk_mb": limits.disk_mb,
            "max_output_bytes": limits.max_output_bytes,
            "user": options.user,
            "env": dict(options.env) or None,
            "policy": options.policy,
            "workspace": None if options.workspace is None else os.fspath(options.workspace),
            "idle_timeout_seconds": options.idle_timeout,
            "max_lifetime_seconds": options.max_lifetime,
            "exec_timeout_seconds": options.exec_timeout,
            "snapshot_id": options.snapshot,
        }
        return {name: value for name, value in wanted.items() if value is not None}

    def _learn(self, told: Mapping[str, Any]) -> None:
        self._told = told
        self._id = str(told["id"])

    async def stop(self) -> None:
        """Remove the box, unless it is to stay. May be called twice, and again when the server did not answer."""
        number, self._id = self._id, None
        try:
            if number is not None and not self._stays:
                # Somebody else may have removed it, or a call before this one whose answer was lost.
                with contextlib.suppress(SandboxGoneError):
                    await self._line.ask("DELETE", f"/{number}", again=True, seconds=_LIFE_SECONDS)
        except SandboxError:
            self._id = number
            raise
        finally:
            for command in self._commands.values():
                command.close()
            self._commands.clear()
            await self._line.close()

    async def reset(self) -> None:
        """The box anew, around the same workspace."""
        self._learn(await self._line.ask("POST", f"{self._path}/reset", value={}, seconds=_LIFE_SECONDS))

    async def refresh(self) -> None:
        """Ask the server how it stands with the box."""
        self._learn(await self._line.ask("GET", self._path))

    @property
    def _path(self) -> str:
        if self._id is None:
            raise SandboxError(NOT_RUNNING, hint="start it first")
        return f"/{self._id}"

    # ---- commands

    async def exec(
        self, command: str | Sequence[str], *, timeout: float | None, wait: float | None, **how: Unpack[StartFields]
    ) -> RemoteCommand:
        """Run a command; see AsyncSandbox.exec."""
        stdin = how.get("stdin", False)
        streamed = _is_streamed(stdin)
        request = _command_request(command, timeout, how)
        about = _about(command)
        if streamed or wait == 0:
            if streamed:
                request["open_stdin"] = True
            found = await self._line.ask("POST", f"{self._path}/commands", about=about, value=request)
        else:
            patience = request["wait_seconds"] = _patience(wait)
            found = await self._line.ask(
                "POST", f"{self._path}/exec", about=about, value=request, seconds=patience + _MARGIN_SECONDS
            )
        started = self._made_of(command, found, how)
        if streamed and isinstance(stdin, bytes):
            started.watch()
            await _feed(started, stdin)
        await self._attend(started, wait)
        return started

    def exec_here(
        self, command: str | Sequence[str], *, timeout: float | None, wait: float | None, **how: Unpack[StartFields]
    ) -> RemoteCommand | None:
        """As `exec`, in any thread but the loop's, which waits itself; None, and nothing was done, where input is to be
        sent meanwhile, or nothing is waited for."""
        if wait == 0 or _is_streamed(how.get("stdin", False)):
            return None
        request = _command_request(command, timeout, how)
        patience = request["wait_seconds"] = _patience(wait)
        found = self._line.post_here(
            f"{self._path}/exec", request, about=_about(command), seconds=patience + _MARGIN_SECONDS
        )
        made = self._made_of(command, found, how)
        if not made.complete:
            call(self._attend(made, wait))
        return made

    async def _attend(self, command: RemoteCommand, wait: float | None) -> None:
        command.watch()
        if wait is None or wait > 0:
            await command.wait(None if wait is None else max(0.0, wait - command.elapsed_seconds))

    def _made_of(self, command: str | Sequence[str], found: Mapping[str, Any], how: StartFields) -> RemoteCommand:
        merged = how.get("merged", True) or how.get("terminal") is not None
        made = self._made(command if isinstance(command, str) else list(command), found, merged=merged)
        made.take(_data(found, "stdout"), _data(found, "stderr"))
        return made

    def _made(self, command: str | Sequence[str], found: Mapping[str, Any], *, merged: bool) -> RemoteCommand:
        argv = found.get("argv") or ([command] if isinstance(command, str) else command)
        spool_bytes = self.options.limits.max_output_bytes
        made = RemoteCommand(self._line, self._path, argv, found, merged=merged, spool_bytes=spool_bytes)
        self._commands[made.id] = made
        if len(self._commands) > _KEPT_COMMANDS:
            for key, old in list(self._commands.items()):
                if not old.running:
                    self._commands.pop(key, None)
                    break
        return made

    async def find_commands(self) -> tuple[RemoteCommand, ...]:
        """All that the server knows of this box, also those that others started."""
        for found in (await self._line.ask("GET", f"{self._path}/commands"))["commands"]:
            known = self._commands.get(found["id"])
            if known is not None:
                known.learn(found)
            else:
                self._made(found["argv"], found, merged=bool(found.get("merged", True))).watch()
        return self.commands

    @property
    def commands(self) -> tuple[RemoteCommand, ...]:
        """Those that were started or found here: the ones that run, and the last that have ended."""
        return tuple(self._commands.values())

    # ---- tools

    async def shell(self, tool: str, *arguments: Any) -> ShellResult:
        """The answer of the shell tool "exec", "wait" or "kill"."""
        if self._id is None:
            return rejected(NOT_RUNNING)
        names = {"exec": ("command", "timeout"), "wait": ("timeout",), "kill": ("grace_seconds",)}[tool]
        given = {name: value for name, value in zip(names, arguments, strict=False) if value is not None}
        try:
            found = await self._call_tool(f"shell_{tool}", given)
        except NoAnswerError as error:
            return rejected(f"{error.message}; use shell_wait to see whether the command runs")
        except AgentboxError as error:
            return rejected(f"{error.message}")
        return ShellResult(**found["result"])

    async def dispatch(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The answer to a model's call."""
        if name == "shell_exec":
            return (await self.shell("exec", arguments["command"], arguments.get("timeout"))).render()
        if name == "shell_wait":
            return (await self.shell("wait", arguments.get("timeout"))).render()
        if name == "shell_kill":
            return (await self.shell("kill")).render()
        if self._id is None:
            return f"ERROR: {NOT_RUNNING} (start it first)"
        try:
            return str((await self._call_tool(name, dict(arguments)))["text"])
        except AgentboxError as error:
            return f"ERROR: {error.message}{f' ({error.hint})' if error.hint else ''}"

    async def _call_tool(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        limit = float(arguments.get("timeout") or self.options.exec_timeout)
        answer = await self._line.ask(
            "POST",
            f"{self._path}/tools/{name}",
            value=dict(arguments),
            seconds=limit + _MARGIN_SECONDS,
        )
        found: Mapping[str, Any] = answer
        return found

    async def fetch_workspace(self, to: str | os.PathLike[str]) -> Fetched:
        """Copy the workspace to a new directory of this machine."""
        found = await self.files.fetch(".", os.fspath(to))
        return Fetched(found.files, found.size_bytes, found.left_out)

    # ---- what there is to know

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._id is not None

    @property
    def container_id(self) -> str | None:
        """Its id on the server."""
        return self._id

    @property
    def backend(self) -> str:
        """The backend's name."""
        return str(self._told.get("backend") or self.options.backend or "auto")

    @property
    def workspace(self) -> str | None:
        """The name of its workspace, None for one that goes with it."""
        return self._told.get("workspace")

    @property
    def enforcement(self) -> Enforcement:
        """Which layer holds what, as the server said when it was asked last."""
        told = self._told.get("enforcement") or {}
        return Enforcement(**{one.name: Layer(told[one.name]) for one in fields(Enforcement) if one.name in told})

    @property
    def denials(self) -> tuple[Denial, ...]:
        """What had been refused when the server was asked last."""
        return tuple(_denial(one) for one in self._told.get("denials") or ())

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the policy holds in part only."""
        return tuple(self._told.get("warnings") or ())

    @property
    def trace(self) -> str | None:
        """None: the file of its trace lies on the server; see `fetch_trace`."""
        return None

    async def fetch_trace(self, to: str | os.PathLike[str]) -> int:
        """Copy its trace to a new file of this machine; how many bytes it has."""
        copied = 0
        async with self._line.open("GET", f"{self._path}/trace") as answer:
            fd = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                async for piece in answer.pieces(_MARGIN_SECONDS):
                    write_all(fd, piece)
                    copied += len(piece)
            finally:
                os.close(fd)
        return copied


def _denial(found: Mapping[str, Any]) -> Denial:
    return Denial(
        layer=Layer(found.get("layer") or Layer.GATEWAY),
        effect=str(found.get("effect") or "net"),
        target=str(found["target"]),
        reason=str(found["reason"]),
        trace_index=int(found.get("trace_index") or 0),
        rule=found.get("rule"),
        rule_missing=found.get("rule_missing"),
        hint=str(found.get("hint") or ""),
    )


def checked_id(text: str) -> str:
    """The id, which can then be part of a path. Raises SandboxError for what is none."""
    if not text.replace("-", "").replace("_", "").isalnum() or not text.isascii():
        raise SandboxError(f"{text!r} is no id of a sandbox", hint="`agentbox sandbox ls` shows them")
    return text


def _command_request(command: str | Sequence[str], timeout: float | None, how: StartFields) -> dict[str, Any]:
    words = command if isinstance(command, str) else list(command)
    if not words and not isinstance(words, str):
        raise ValueError("an empty command")
    env, cwd = how.get("env"), how.get("cwd")
    terminal = how.get("terminal")
    texts = [words] if isinstance(words, str) else list(words)
    texts += [cwd or "", *(env or {}), *(value or "" for value in (env or {}).values())]
    if any("\0" in text for text in texts):
        raise ValueError("a zero byte cannot be part of a command, its directory or its environment")
    request: dict[str, Any] = {"command": words, "merged": how.get("merged", True)}
    given = {
        "cwd": cwd,
        "env": dict(env) if env else None,
        "user": how.get("user") or None,
        "timeout_seconds": timeout,
        "terminal": None if terminal is None else list(terminal),
    }
    stdin = how.get("stdin", False)
    if isinstance(stdin, bytes) and not _is_streamed(stdin):
        request |= _input(stdin)
    return request | {name: value for name, value in given.items() if value is not None}


def _is_streamed(stdin: bytes | bool) -> bool:
    """Whether the input goes on its own way."""
    return stdin is True or (isinstance(stdin, bytes) and len(stdin) > _MAX_INLINE_INPUT_BYTES)


def _about(command: str | Sequence[str]) -> str:
    return command.split(" ")[0] if isinstance(command, str) else next(iter(command), "")


def _patience(wait: float | None) -> float:
    return LONGEST_WAIT_SECONDS if wait is None else min(wait, LONGEST_WAIT_SECONDS)


def _input(data: bytes) -> dict[str, str]:
    try:
        return {"stdin": data.decode()}
    except UnicodeDecodeError:
        return {"stdin_b64": base64.b64encode(data).decode()}


def _data(found: Mapping[str, Any], stream: str) -> bytes:
    encoded = found.get(f"{stream}_b64")
    if encoded is not None:
        return base64.b64decode(encoded)
    return str(found.get(stream) or "").encode()


async def _feed(command: RemoteCommand, data: bytes) -> None:
    try:
        await command.send(data)
    except SandboxError:
        # It ended before it had read everything, as commands may.
        return
    command.close_stdin()
