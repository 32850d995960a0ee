# SPDX-License-Identifier: MIT
"""Operations on commands of sandboxes, as the OpenAPI document has them."""

from __future__ import annotations

from functools import partial

from agentbox.server.sandboxes.kinds import TOOL_PATTERN
from agentbox.server.sandboxes.openapi_parts import (
    BODY,
    BOX,
    BYTES,
    COMMAND,
    COMMAND_ID,
    LARGEST_WHOLE,
    ONE,
    SANDBOX,
    Json,
    answer,
    choice,
    headed,
    json_body,
    operation,
    query,
    raw_body,
    ref,
    seconds,
    whole,
)


def commands(*, keyed: bool) -> Json:
    """All of them, and the tools for models."""
    make = partial(operation, keyed=keyed)
    return {
        **_tools(keyed=keyed),
        f"{ONE}/exec": {
            "parameters": [SANDBOX],
            "post": make(
                "exec_in_sandbox",
                "Run a command and wait for it",
                {"200": answer("It ended, or wait_seconds are over: see running", ref("CommandResult"))},
                *("400", "404", "422", "429", *BOX, *BODY),
                body=json_body("ExecBody"),
                description="A client that goes away ends the waiting, not the command.",
            ),
        },
        f"{ONE}/commands": {
            "parameters": [SANDBOX],
            "post": make(
                "start_command",
                "Start a command",
                {"201": answer("It runs", ref("Command"))},
                *("400", "404", "422", "429", *BOX, *BODY),
                body=json_body("StartBody"),
            ),
            "get": make(
                "list_commands",
                "Those that run, and the last that have ended",
                {"200": answer("The oldest first", ref("Commands"))},
                "404",
            ),
        },
        COMMAND: {
            "parameters": [SANDBOX, COMMAND_ID],
            "get": make(
                "get_command",
                "One command",
                {"200": answer("What is known", ref("Command"))},
                *("404", "422"),
                parameters=[query("wait_seconds", seconds(), "wait for its end, at most so long")],
            ),
        },
        f"{COMMAND}/output": {"parameters": [SANDBOX, COMMAND_ID], "get": _output(keyed=keyed)},
        f"{COMMAND}/stdin": {
            "parameters": [SANDBOX, COMMAND_ID],
            "post": make(
                "write_stdin",
                "Write to its input",
                {"204": answer("It has taken everything")},
                *("404", "408", "409", "413", "415", "422"),
                parameters=[query("close", choice("false", "true"), "end its input after that")],
                body=raw_body("application/octet-stream", "what it reads"),
            ),
        },
        f"{COMMAND}/kill": {
            "parameters": [SANDBOX, COMMAND_ID],
            "post": make(
                "kill_command",
                "End it with everything that it started",
                {"200": answer("It has ended", ref("Survivors"))},
                *("404", "409", "422", "429", *BODY),
                body=json_body("KillBody", required=False),
            ),
        },
        f"{COMMAND}/signal": {
            "parameters": [SANDBOX, COMMAND_ID],
            "post": make(
                "signal_command",
                "Send a signal to its process group",
                {"204": answer("It is sent")},
                *("404", "409", "422", "429", *BODY),
                body=json_body("SignalBody"),
            ),
        },
        f"{COMMAND}/resize": {
            "parameters": [SANDBOX, COMMAND_ID],
            "post": make(
                "resize_terminal",
                "Change the size of its terminal",
                {"204": answer("It is sent")},
                *("404", "409", "422", "429", *BODY),
                body=json_body("ResizeBody"),
            ),
        },
    }


def _output(*, keyed: bool) -> Json:
    piece = headed("Some of it, or events", {})
    piece["content"] = {
        "application/octet-stream": {"schema": BYTES},
        "text/event-stream": {
            "schema": {"type": "string"},
            "example": 'id: 3-0\nevent: stdout\ndata: {"seq":1,"offset":0,"text":"hi\\n"}\n\n',
        },
    }
    for name, text in (
        ("X-Agentbox-Offset", "where this piece begins: later than asked for where that is not kept"),
        ("X-Agentbox-Total", "how many bytes came so far"),
        ("X-Agentbox-Running", "whether its process runs"),
        ("X-Agentbox-Closed", "whether nothing more will come"),
    ):
        piece["headers"][name] = {"description": f"{text}; not of events", "schema": {"type": "string"}}
    return operation(
        "read_output",
        "What a command wrote",
        {"200": piece},
        *("404", "422"),
        parameters=[
            query("stream", choice("stdout", "stderr"), "which; events tell both where nothing is said"),
            query("offset", whole(0, LARGEST_WHOLE, 0), "from this byte on"),
            query("limit", whole(1, 16 << 20, 1 << 20), "at most so many bytes; not of events"),
            query("wait_seconds", seconds(), "wait for more, at most so long; not of events"),
            query("stderr_offset", whole(0, LARGEST_WHOLE, 0), "events only: where stderr begins when both are told"),
            query("until", choice("exit", "closed"), "events only: end with the process, or with its last output"),
        ],
        description=(
            "With `Accept: text/event-stream` the answer is a stream of `stdout` and `stderr` events, "
            '`{"seq","offset","text"}` or `{"seq","offset","b64"}` for what is not UTF-8, then `exit` with the command.'
            " `Last-Event-ID` takes it up where it was lost. A comment keeps quiet streams open."
        ),
        keyed=keyed,
    )


def _tools(*, keyed: bool) -> Json:
    tool = {"name": "tool", "in": "path", "required": True, "schema": {"type": "string", "pattern": TOOL_PATTERN}}
    return {
        f"{ONE}/tools/{{tool}}": {
            "parameters": [SANDBOX, tool],
            "post": operation(
                "call_tool",
                "Answer a model's call of one of its tools",
                {"200": answer("What the model is told, also of what went wrong", ref("ToolResult"))},
                *("404", "409", "422", "429", *BODY),
                body={
                    "required": False,
                    "content": {"application/json": {"schema": {"type": "object", "additionalProperties": True}}},
                },
                description="`shell_exec`, `shell_wait`, `shell_kill`, `bash` and `str_replace_based_edit_tool`.",
                keyed=keyed,
            ),
        }
    }
