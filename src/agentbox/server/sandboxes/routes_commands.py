# SPDX-License-Identifier: MIT
"""Routes of commands: begun, waited for, given input, ended."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from agentbox.errors import InvalidRequestError, SandboxError
from agentbox.sandbox.command import DEFAULT_GRACE_SECONDS, Command
from agentbox.server.routing import Router
from agentbox.server.sandboxes.bodies import CommandBody, ExecBody, KillBody, ResizeBody, SignalBody, StartBody
from agentbox.server.sandboxes.kept import KeptSandbox
from agentbox.server.sandboxes.kept_commands import KeptCommand
from agentbox.server.sandboxes.kinds import MAX_SECONDS, SIGNALS
from agentbox.server.sandboxes.reading import Desk, Query, json_answer, start_problem
from agentbox.server.sandboxes.shapes import command_with_output, output_cap
from agentbox.server.supervised import DISCONNECT, Occasion, supervised

# Of the request's `stdin`; the connection that brought it is not needed for that.
_FEEDING: set[asyncio.Task[None]] = set()


def add(router: Router, desk: Desk) -> None:
    """Add them."""
    _add_beginning(router, desk)
    _add_acting(router, desk)


def _add_beginning(router: Router, desk: Desk) -> None:
    async def execute_now(request: Request) -> ASGIApp:
        body = await desk.body(request, ExecBody)
        sandbox = await desk.awake(request)
        return json_answer(await execute(desk, sandbox, body, request.scope["state"][DISCONNECT]))

    async def start(request: Request) -> ASGIApp:
        body = await desk.body(request, StartBody)
        sandbox = await desk.awake(request)
        kept = await begin(sandbox, body, open_stdin=body.open_stdin)
        return json_answer(kept.body(), 201)

    async def list_all(request: Request) -> ASGIApp:
        return json_answer({"commands": [kept.body() for kept in desk.sandbox(request).history.list()]})

    async def get(request: Request) -> ASGIApp:
        seconds = Query(request).seconds("wait_seconds", 0, MAX_SECONDS)
        kept = _named(desk, request)
        if seconds:
            await desk.supervised(request, kept.wait(seconds))
        return json_answer(kept.body())

    router.add("POST", "/v1/sandboxes/{sandbox_id}/exec", execute_now)
    router.add("POST", "/v1/sandboxes/{sandbox_id}/commands", start)
    router.add("GET", "/v1/sandboxes/{sandbox_id}/commands", list_all)
    router.add("GET", "/v1/sandboxes/{sandbox_id}/commands/{command_id}", get)


def _add_acting(router: Router, desk: Desk) -> None:
    async def stdin(request: Request) -> ASGIApp:
        close = Query(request).truth("close")
        command = _running(_named(desk, request))
        async for piece in request.stream():
            await command.send(piece)
        if close:
            command.close_stdin()
        return Response(status_code=204)

    async def kill(request: Request) -> ASGIApp:
        body = await desk.body(request, KillBody, may_be_empty=True)
        kept = _named(desk, request)
        grace = DEFAULT_GRACE_SECONDS if body.grace_seconds is None else body.grace_seconds
        left = 0 if kept.command is None else await kept.command.kill(grace)
        return json_answer({"survivors": left})

    async def signal(request: Request) -> ASGIApp:
        body = await desk.body(request, SignalBody)
        _running(_named(desk, request)).send_signal(SIGNALS[body.signal])
        return Response(status_code=204)

    async def resize(request: Request) -> ASGIApp:
        body = await desk.body(request, ResizeBody)
        _running(_named(desk, request)).resize(body.rows, body.columns)
        return Response(status_code=204)

    base = "/v1/sandboxes/{sandbox_id}/commands/{command_id}"
    router.add("POST", f"{base}/stdin", stdin)
    router.add("POST", f"{base}/kill", kill)
    router.add("POST", f"{base}/signal", signal)
    router.add("POST", f"{base}/resize", resize)


async def execute(desk: Desk, sandbox: KeptSandbox, body: ExecBody, gone: Occasion) -> dict[str, Any]:
    """Run a command and wait for it, unless who asks is `gone`: that ends the waiting, not the command. Raises as
    `begin`, and ClientGoneError. Whoever calls answers at once."""
    kept = await begin(sandbox, body, open_stdin=False)
    with sandbox.history.answering(kept):
        await supervised(kept.wait_for_answer(body.wait_seconds), gone, desk.stopping)
        return command_with_output(kept, output_cap(sandbox, desk.settings.max_output_bytes))


async def begin(sandbox: KeptSandbox, body: CommandBody, *, open_stdin: bool) -> KeptCommand:
    """Start a command; its input follows by itself. Raises Problem (400, 410), SandboxError."""
    given = None if body.stdin is None else body.stdin.encode()
    if body.stdin_b64 is not None:
        given = base64.b64decode(body.stdin_b64)
    try:
        command = await sandbox.exec(
            body.command,
            timeout=body.timeout_seconds,
            wait=0,
            stdin=open_stdin or given is not None,
            cwd=body.cwd,
            env=body.env,
            user=body.user,
            merged=body.merged,
            terminal=None if body.terminal is None else (body.terminal[0], body.terminal[1]),
        )
    except OSError as error:
        raise start_problem(error) from error
    except ValueError as error:
        raise InvalidRequestError(str(error), hint="change the command") from error
    if given is not None:
        feeding = asyncio.create_task(_feed(command, given, close=not open_stdin))
        _FEEDING.add(feeding)
        feeding.add_done_callback(_FEEDING.discard)
    return sandbox.history.of(command)


async def _feed(command: Command, data: bytes, *, close: bool) -> None:
    with contextlib.suppress(SandboxError):
        await command.send(data)
        if close:
            command.close_stdin()


def _named(desk: Desk, request: Request) -> KeptCommand:
    return desk.sandbox(request).history.get(request.path_params["command_id"])


def _running(kept: KeptCommand) -> Command:
    if kept.command is None or not kept.command.running:
        raise SandboxError("the command has ended", hint="start another command")
    return kept.command
