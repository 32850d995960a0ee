# SPDX-License-Identifier: MIT
"""Operations on sandboxes, as the OpenAPI document has them."""

from __future__ import annotations

from functools import partial

from agentbox.server.sandboxes.openapi_parts import (
    BODY,
    BOX,
    FILES,
    LARGEST_WHOLE,
    Json,
    answer,
    choice,
    headed,
    json_body,
    named,
    operation,
    path_parameters,
    query,
    raw_body,
    ref,
    seconds,
    user_parameter,
    whole,
)

BASE = "/v1/sandboxes"
ONE = f"{BASE}/{{sandbox_id}}"
COMMAND = f"{ONE}/commands/{{command_id}}"
_SANDBOX = named("sandbox_id", "^sbx-[0-9a-f]{16}$")
_COMMAND = named("command_id", "^cmd-[0-9a-f]{16}$")
_BYTES: Json = {"type": "string", "format": "binary"}


def paths(*, keyed: bool) -> Json:
    """All of them."""
    return {**_life(keyed=keyed), **_commands(keyed=keyed), **_tools(keyed=keyed), **_files(keyed=keyed)}


def _life(*, keyed: bool) -> Json:
    make = partial(operation, keyed=keyed)
    keep = query("keep_workspace", choice("true", "false"), "false also removes a workspace that has a name")
    return {
        BASE: {
            "post": make(
                "create_sandbox",
                "Make a sandbox",
                {"201": answer("It is there", ref("Sandbox"))},
                *("400", "409", "422", "429", *BODY),
                body=json_body("SandboxBody", required=False),
            ),
            "get": make(
                "list_sandboxes", "Sandboxes of this key", {"200": answer("The oldest first", ref("Sandboxes"))}
            ),
        },
        ONE: {
            "parameters": [_SANDBOX],
            "get": make("get_sandbox", "One sandbox", {"200": answer("What is known", ref("Sandbox"))}, "404"),
            "delete": make(
                "delete_sandbox",
                "End it and remove it with its files",
                {"204": answer("It is gone")},
                *("404", "422"),
                parameters=[keep],
            ),
        },
        f"{ONE}/reset": {
            "parameters": [_SANDBOX],
            "post": make(
                "reset_sandbox",
                "Make its box anew around its workspace",
                {"200": answer("It is there", ref("Sandbox"))},
                *("404", "409"),
            ),
        },
    }


def _commands(*, keyed: bool) -> Json:
    make = partial(operation, keyed=keyed)
    return {
        f"{ONE}/exec": {
            "parameters": [_SANDBOX],
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
            "parameters": [_SANDBOX],
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
            "parameters": [_SANDBOX, _COMMAND],
            "get": make(
                "get_command",
                "One command",
                {"200": answer("What is known", ref("Command"))},
                *("404", "422"),
                parameters=[query("wait_seconds", seconds(), "wait for its end, at most so long")],
            ),
        },
        f"{COMMAND}/output": {"parameters": [_SANDBOX, _COMMAND], "get": _output(keyed=keyed)},
        f"{COMMAND}/stdin": {
            "parameters": [_SANDBOX, _COMMAND],
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
            "parameters": [_SANDBOX, _COMMAND],
            "post": make(
                "kill_command",
                "End it with everything that it started",
                {"200": answer("It has ended", ref("Survivors"))},
                *("404", "409", "422", "429", *BODY),
                body=json_body("KillBody", required=False),
            ),
        },
        f"{COMMAND}/signal": {
            "parameters": [_SANDBOX, _COMMAND],
            "post": make(
                "signal_command",
                "Send a signal to its process group",
                {"204": answer("It is sent")},
                *("404", "409", "422", "429", *BODY),
                body=json_body("SignalBody"),
            ),
        },
        f"{COMMAND}/resize": {
            "parameters": [_SANDBOX, _COMMAND],
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
        "application/octet-stream": {"schema": _BYTES},
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
    tool = {"name": "tool", "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[a-z_]{1,64}$"}}
    return {
        f"{ONE}/tools/{{tool}}": {
            "parameters": [_SANDBOX, tool],
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


def _files(*, keyed: bool) -> Json:
    make = partial(operation, keyed=keyed)
    base = f"{ONE}/files"
    return {
        base: {
            "parameters": [_SANDBOX],
            "get": make(
                "read_file",
                "A file's bytes",
                {"200": answer("They follow", _BYTES, "application/octet-stream")},
                *("404", "422", *FILES),
                parameters=[
                    *path_parameters(),
                    query("offset", whole(0, LARGEST_WHOLE, 0), "from this byte on"),
                    query("length", whole(-1, LARGEST_WHOLE, -1), "at most so many bytes; -1 is up to the end"),
                ],
            ),
            "put": make(
                "write_file",
                "Write a file, with its parents",
                {"204": answer("It is written")},
                *("404", "422", *FILES, *BODY),
                parameters=[
                    *path_parameters(),
                    query("mode", {"type": "string", "pattern": "^0?[0-7]{3}$"}, "permission bits as octal digits"),
                    query(
                        "how",
                        choice("replace", "append", "new"),
                        "replace it at once, append to it, or refuse where it is there",
                    ),
                ],
                body=raw_body("application/octet-stream", "its content"),
            ),
            "delete": make(
                "remove_file",
                "Remove a file, or a directory with all that is in it",
                {"204": answer("It is gone")},
                *("404", "422", *FILES),
                parameters=path_parameters(),
            ),
        },
        f"{base}/info": {
            "parameters": [_SANDBOX],
            "get": make(
                "file_info",
                "What is at a path; of a link, the link itself",
                {"200": answer("What is known", ref("FileInfo"))},
                *("404", "422", *FILES),
                parameters=path_parameters(),
            ),
        },
        f"{base}/list": {
            "parameters": [_SANDBOX],
            "get": make(
                "list_files",
                "What is in a directory",
                {"200": answer("By path", ref("FileList"))},
                *("404", "413", "422", *FILES),
                parameters=[
                    *path_parameters(required=False),
                    query("depth", whole(-1, 256, 1), "levels; -1 is all of them"),
                    query("max_entries", whole(1, 100_000, 100_000), "more are refused"),
                ],
            ),
        },
        f"{base}/directory": {
            "parameters": [_SANDBOX],
            "post": make(
                "make_directory",
                "Make a directory with its parents",
                {"204": answer("It is there")},
                *("404", "422", "429", *FILES, *BODY),
                parameters=[user_parameter()],
                body=json_body("DirectoryBody"),
            ),
        },
        f"{base}/move": {
            "parameters": [_SANDBOX],
            "post": make(
                "move_file",
                "Give something another name, over what has that name",
                {"204": answer("It has it")},
                *("404", "422", "429", *FILES, *BODY),
                parameters=[user_parameter()],
                body=json_body("MoveBody"),
            ),
        },
    }
