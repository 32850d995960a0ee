# SPDX-License-Identifier: MIT
"""Schemas of bodies and answers about sandboxes."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from agentbox.models import Layer
from agentbox.server.sandboxes import bodies
from agentbox.server.sandboxes.kinds import GONE, PAUSED, RESOURCES, RUNNING
from agentbox.server.sandboxes.openapi_parts import Json, closed, ref

_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_TRUTH: Json = {"type": "boolean"}
_TIME: Json = {"type": "number", "description": "seconds since 1970, UTC"}
_BODIES = (
    bodies.SandboxBody,
    bodies.ExecBody,
    bodies.StartBody,
    bodies.KillBody,
    bodies.SignalBody,
    bodies.ResizeBody,
    bodies.DirectoryBody,
    bodies.MoveBody,
    bodies.SnapshotBody,
    bodies.RestoreBody,
    bodies.ForkBody,
)


def _nullable(kind: str, **more: Any) -> Json:
    return {"type": [kind, "null"], **more}


def schemas(denial: Json, backends: list[str]) -> Json:
    """All of them by name. `denial` is the schema of something that a policy did not allow."""
    return {
        **_request_schemas(backends),
        "Sandbox": _sandbox(denial),
        "Sandboxes": closed({"sandboxes": {"type": "array", "items": ref("Sandbox")}}),
        "Command": closed(_command()),
        "Commands": closed({"commands": {"type": "array", "items": ref("Command")}}),
        "CommandResult": closed(_command() | _output("stdout") | _output("stderr")),
        "Survivors": closed({"survivors": {**_COUNT, "description": "processes that are left, 0 as a rule"}}),
        "ToolResult": closed(
            {
                "text": {"type": "string", "description": "what the model is told"},
                "result": {
                    "anyOf": [_shell_result(), {"type": "null"}],
                    "description": "the same as fields, of the three shell tools",
                },
            }
        ),
        "SandboxSnapshot": closed(
            {"snapshot_id": _TEXT, "name": _nullable("string"), "bytes": _COUNT, "created_at": _TIME, "kept": _TRUTH}
        ),
        "SandboxSnapshots": closed({"snapshots": {"type": "array", "items": ref("SandboxSnapshot")}}),
        "FileInfo": closed(_file()),
        "FileList": closed({"entries": {"type": "array", "items": ref("FileInfo")}}),
    }


def _request_schemas(backends: list[str]) -> Json:
    _, top = models_json_schema(
        [(model, "validation") for model in _BODIES], ref_template="#/components/schemas/{model}"
    )
    found: Json = top["$defs"]
    for name, where in (("SandboxBody", "env"), ("ExecBody", "env"), ("StartBody", "env")):
        _close_names(found[name]["properties"][where]["anyOf"][0])
    found["SandboxBody"]["properties"]["backend"]["anyOf"] = [{"type": "string", "enum": backends}, {"type": "null"}]
    found["SandboxBody"]["examples"] = [{}, {"memory_mb": 512, "idle_timeout_seconds": 600}]
    found["ExecBody"]["examples"] = [{"command": "echo hello"}, {"command": ["cat"], "stdin": "text"}]
    return found


def _close_names(mapping: Json) -> None:
    """pydantic writes a pattern of names as patternProperties, which lets other names pass."""
    [(pattern, values)] = mapping.pop("patternProperties").items()
    mapping["propertyNames"]["pattern"] = pattern
    mapping["additionalProperties"] = values


def _sandbox(denial: Json) -> Json:
    limits = {
        "memory_mb": _COUNT,
        "cpus": {"type": "number", "minimum": 0},
        "pids": _COUNT,
        "disk_mb": _COUNT,
        "max_output_bytes": _COUNT,
    }
    layers = {"type": "string", "enum": [layer.value for layer in Layer]}
    return closed(
        {
            "id": _TEXT,
            "backend": _TEXT,
            "image": _nullable("string"),
            "user": _TEXT,
            "status": {"type": "string", "enum": [RUNNING, PAUSED, GONE]},
            "why_gone": _TEXT,
            "workspace": _nullable("string", description="its name; null for one that goes with the sandbox"),
            "created_at": _TIME,
            "last_used_at": _TIME,
            "rebuilt": {**_COUNT, "description": "how often its box was made anew around its workspace"},
            "limits": closed(limits),
            "idle_timeout_seconds": _nullable("number"),
            "max_lifetime_seconds": _nullable("number"),
            "enforcement": closed({name: {**layers, "description": f"what holds {name}"} for name in RESOURCES}),
            "policy_sha256": _nullable("string"),
            "denials": {"type": "array", "items": denial, "description": "what was refused, the last hundred"},
            "warnings": {"type": "array", "items": _TEXT, "description": "what of the policy holds in part only"},
        }
    )


def _command() -> Json:
    return {
        "id": _TEXT,
        "argv": {"type": "array", "items": _TEXT},
        "merged": {**_TRUTH, "description": "whether stderr goes to stdout"},
        "closed": {**_TRUTH, "description": "whether nothing more of its output will come"},
        "running": _TRUTH,
        "pid": _nullable("integer"),
        "exit_code": _nullable("integer", description="128 + n after signal n; null while it runs"),
        "signal": _nullable("integer"),
        "timed_out": _TRUTH,
        "lost": _nullable("string", description="why its end is not known"),
        "elapsed_seconds": {"type": "number"},
        "cpu_ms": _nullable("number"),
        "max_memory_bytes": _nullable("integer"),
        "started_at": _TIME,
        "stdout_bytes": _COUNT,
        "stderr_bytes": _COUNT,
    }


def _output(stream: str) -> Json:
    return {
        stream: {"type": "string", "description": "beginning and end where there is more than max_output_bytes"},
        f"{stream}_b64": _nullable("string", description="the exact bytes, only where they are not UTF-8"),
        f"{stream}_truncated": _TRUTH,
    }


def _shell_result() -> Json:
    return closed(
        {
            "output": _TEXT,
            "exit_code": _nullable("integer"),
            "status": {"type": "string", "enum": ["completed", "running", "killed", "rejected"]},
            "note": _TEXT,
            "elapsed": {"type": "number"},
            "idle": {"type": "number"},
            "new_characters": _COUNT,
        }
    )


def _file() -> Json:
    return {
        "path": _TEXT,
        "path_b64": _nullable("string", description="its bytes, only where they are not UTF-8"),
        "kind": {"type": "string", "enum": ["file", "directory", "link", "fifo", "socket", "device"]},
        "size": {"type": "integer"},
        "mode": {**_COUNT, "description": "permission bits as a number"},
        "modified": _TIME,
        "uid": {"type": "integer"},
        "gid": {"type": "integer"},
        "target": _nullable("string", description="of a link"),
    }
