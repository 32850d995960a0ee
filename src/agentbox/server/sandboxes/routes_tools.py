# SPDX-License-Identifier: MIT
"""Calls of models: the tools that they are given, answered."""

from __future__ import annotations

import re
from typing import Any

from pydantic import RootModel
from starlette.requests import Request
from starlette.types import ASGIApp

from agentbox.errors import NotFoundError, SandboxGoneError
from agentbox.records import fields
from agentbox.sandbox.results import ShellResult
from agentbox.server.problems import invalid
from agentbox.server.routing import Router
from agentbox.server.sandboxes.kept import KeptSandbox
from agentbox.server.sandboxes.kinds import TOOL_PATTERN
from agentbox.server.sandboxes.reading import Desk, json_answer, shown, started

SHELL_TOOLS = {
    "shell_exec": ("exec", ("command", "timeout")),
    "shell_wait": ("wait", ("timeout",)),
    "shell_kill": ("kill", ("grace_seconds",)),
}


class ToolBody(RootModel[dict[str, Any]]):
    """Arguments of a call, as the model gave them."""


def add(router: Router, desk: Desk) -> None:
    """Add them."""

    async def call(request: Request) -> ASGIApp:
        name = request.path_params["tool"]
        if not re.fullmatch(TOOL_PATTERN.removesuffix("$"), name):
            raise NotFoundError(f"{shown(name[:64])!r} is no name of a tool", hint="use letters a to z and _")
        arguments = (await desk.body(request, ToolBody, may_be_empty=True)).root
        sandbox = desk.sandbox(request)
        try:
            if name == "bash" and arguments.get("restart") is True:
                await started(_with_box(sandbox))
            else:
                await started(sandbox.wake())
            return json_answer(await desk.supervised(request, _answer(sandbox, name, arguments)))
        except SandboxGoneError as error:
            # What a model is told is never an error of HTTP, as long as the sandbox is there.
            return json_answer({"text": f"ERROR: {error.message}", "result": None})

    router.add("POST", "/v1/sandboxes/{sandbox_id}/tools/{tool}", call)


async def _with_box(sandbox: KeptSandbox) -> None:
    try:
        await sandbox.wake()
    except SandboxGoneError:
        await sandbox.renew()


async def _answer(sandbox: KeptSandbox, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if name not in SHELL_TOOLS:
        return {"text": _carried(await sandbox.dispatch(name, arguments)), "result": None}
    tool, names = SHELL_TOOLS[name]
    given = [_checked(one, arguments.get(one)) for one in names]
    if tool == "exec" and given[0] is None:
        raise _fault("command", "Field required", None)
    if tool == "kill" and given[0] is None:
        given = []
    result = await sandbox.shell(tool, *given)
    told = {one.name: getattr(result, one.name) for one in fields(ShellResult)}
    return {"text": _carried(result.render()), "result": told | {"output": _carried(result.output)}}


def _checked(name: str, value: Any) -> Any:
    if name == "command":
        if value is not None and not isinstance(value, str):
            raise _fault(name, "Input should be a valid string", value)
        return value
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1 << 31:
        raise _fault(name, "Must be a number of seconds", value)
    return float(value)


def _fault(name: str, message: str, value: object) -> Exception:
    return invalid([{"type": "tool_argument", "loc": ["body", name], "msg": message, "input": shown(str(value))}])


def _carried(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
