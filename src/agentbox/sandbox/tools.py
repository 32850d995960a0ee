# SPDX-License-Identifier: MIT
"""The tools that a model is given, in the forms of its makers, and the answers to its calls."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentbox.errors import SandboxError
from agentbox.sandbox.bash_tool import BASH_TOOL, bash
from agentbox.sandbox.editor_tool import EDITOR_TOOL, edit

if TYPE_CHECKING:
    from agentbox.sandbox.local import LocalSandbox

_TIMEOUT = {
    "type": "integer",
    "description": "Seconds to wait for it. When they are over the command goes on; use shell_wait or shell_kill then.",
}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "shell_exec",
        "description": "Run a shell command in the sandbox and wait for it. Files and background processes stay for "
        "later calls; the working directory and variables do not. One command runs at a time.",
        "input_schema": {
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The command, as for `bash -c`."},
                "timeout": _TIMEOUT,
            },
            "required": ["command"],
        },
    },
    {
        "name": "shell_wait",
        "description": "Wait on for the command that is running, and get its new output.",
        "input_schema": {"type": "object", "properties": {"timeout": _TIMEOUT}, "required": []},
    },
    {
        "name": "shell_kill",
        "description": "Stop the command that is running, with everything that it started.",
        "input_schema": {"type": "object", "properties": {}, "required": []},
    },
]


def tools(form: str = "anthropic") -> list[dict[str, Any]]:
    """The three shell tools in a form: "anthropic" (TOOLS), "openai" (function tools of chat completions),
    "openai-responses" (of the responses API), or "anthropic-builtin" (the types bash_20250124 and
    text_editor_20250728, which a model knows already). Raises SandboxError."""
    if form == "anthropic":
        return copy.deepcopy(TOOLS)
    if form == "anthropic-builtin":
        return [dict(BASH_TOOL), dict(EDITOR_TOOL)]
    functions = [
        {"name": tool["name"], "description": tool["description"], "parameters": copy.deepcopy(tool["input_schema"])}
        for tool in TOOLS
    ]
    if form == "openai":
        return [{"type": "function", "function": function} for function in functions]
    if form == "openai-responses":
        return [{"type": "function", **function} for function in functions]
    raise SandboxError(
        f"tools have no form {form!r}", hint="use anthropic, anthropic-builtin, openai or openai-responses"
    )


Answer = Callable[["LocalSandbox", Mapping[str, Any]], Awaitable[str]]


async def _exec(sandbox: LocalSandbox, arguments: Mapping[str, Any]) -> str:
    return (await sandbox.shell("exec", arguments["command"], arguments.get("timeout"))).render()


async def _wait(sandbox: LocalSandbox, arguments: Mapping[str, Any]) -> str:
    return (await sandbox.shell("wait", arguments.get("timeout"))).render()


async def _kill(sandbox: LocalSandbox, arguments: Mapping[str, Any]) -> str:
    del arguments
    return (await sandbox.shell("kill")).render()


_ANSWERS: dict[str, Answer] = {
    "shell_exec": _exec,
    "shell_wait": _wait,
    "shell_kill": _kill,
    "bash": bash,
    "str_replace_based_edit_tool": edit,
}


async def dispatch(sandbox: LocalSandbox, name: str, arguments: Mapping[str, Any]) -> str:
    """The answer to a model's call. A tool that is not known is an answer too; a missing argument of shell_exec is a
    KeyError."""
    answer = _ANSWERS.get(name)
    if answer is None:
        return f"ERROR: unknown tool {name!r}"
    return await answer(sandbox, arguments)
