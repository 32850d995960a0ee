# SPDX-License-Identifier: MIT
"""Operations on sandboxes, as the OpenAPI document has them."""

from __future__ import annotations

from functools import partial

from agentbox.server.sandboxes import openapi_commands, openapi_files
from agentbox.server.sandboxes.openapi_parts import (
    BASE,
    BODY,
    BOX,
    FILES,
    ONE,
    SANDBOX,
    Json,
    answer,
    choice,
    headed,
    json_body,
    named,
    operation,
    query,
    ref,
    told,
    whole,
)


def paths(*, keyed: bool) -> Json:
    """All of them."""
    return {
        **_life(keyed=keyed),
        **_states(keyed=keyed),
        **openapi_commands.commands(keyed=keyed),
        **openapi_files.files(keyed=keyed),
    }


def _life(*, keyed: bool) -> Json:
    make = partial(operation, keyed=keyed)
    keep = query("keep_workspace", choice("true", "false"), "false also removes a workspace that has a name")
    return {
        BASE: {
            "post": make(
                "create_sandbox",
                "Make a sandbox",
                {"201": answer("It is there", ref("Sandbox"))},
                *("400", "404", "409", "422", "429", "507", *BODY),
                body=json_body("SandboxBody", required=False),
            ),
            "get": make(
                "list_sandboxes", "Sandboxes of this key", {"200": answer("The oldest first", ref("Sandboxes"))}
            ),
        },
        ONE: {
            "parameters": [SANDBOX],
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
            "parameters": [SANDBOX],
            "post": make(
                "reset_sandbox",
                "Make its box anew around its workspace",
                {"200": answer("It is there", ref("Sandbox"))},
                *("404", "409"),
            ),
        },
    }


def _states(*, keyed: bool) -> Json:
    make = partial(operation, keyed=keyed)
    snapshot = named("snapshot_id", "^[0-9a-f]{32}$")
    one = {"200": answer("As it is now", ref("Sandbox"))}
    return {
        f"{ONE}/pause": {
            "parameters": [SANDBOX],
            "post": make("pause_sandbox", "Stop everything in it until it is resumed", one, "404", *BOX),
        },
        f"{ONE}/resume": {
            "parameters": [SANDBOX],
            "post": make("resume_sandbox", "Let everything in it go on", one, "404", *BOX),
        },
        f"{ONE}/snapshots": {
            "parameters": [SANDBOX],
            "post": make(
                "snapshot_sandbox",
                "Keep what is in its workspace now",
                {"201": told(answer("It is kept", ref("SandboxSnapshot")))},
                *("400", "404", "422", "429", *FILES, *BODY),
                body=json_body("SnapshotBody", required=False),
            ),
            "get": make(
                "list_sandbox_snapshots",
                "Snapshots of its workspace",
                {"200": answer("The newest first", ref("SandboxSnapshots"))},
                *("404", "409"),
            ),
        },
        f"{ONE}/snapshots/{{snapshot_id}}": {
            "parameters": [SANDBOX, snapshot],
            "delete": make(
                "delete_sandbox_snapshot", "Remove a snapshot", {"204": answer("It is gone")}, *("404", "409")
            ),
        },
        f"{ONE}/restore": {
            "parameters": [SANDBOX],
            "post": make(
                "restore_sandbox",
                "Make its workspace what a snapshot holds; everything that runs in it is ended",
                {status: told(found) for status, found in one.items()},
                *("400", "404", "422", "429", *FILES, *BODY),
                body=json_body("RestoreBody"),
            ),
        },
        f"{ONE}/trace": {"parameters": [SANDBOX], "get": _trace(keyed=keyed)},
        f"{ONE}/fork": {
            "parameters": [SANDBOX],
            "post": make(
                "fork_sandbox",
                "Make others like it, whose workspaces begin with what its own holds now",
                {"201": told(answer("They are there", ref("Sandboxes")))},
                *("400", "404", "422", "429", *FILES, *BODY),
                body=json_body("ForkBody", required=False),
            ),
        },
    }


def _trace(*, keyed: bool) -> Json:
    lines = headed(
        "JSON Lines, as they were written; `agentbox verify` takes the file",
        {"X-Agentbox-Parts": "how many there are"},
    )
    lines["content"] = {"application/jsonl": {"schema": {"type": "string"}}}
    part = query("part", whole(0, 1 << 20, 0), "1 is the first, 0 the one that is written now")
    return operation(
        "sandbox_trace",
        "What was done in it; a new part begins with its box, and when one has grown large",
        {"200": lines},
        *("404", "422"),
        parameters=[part],
        keyed=keyed,
    )
