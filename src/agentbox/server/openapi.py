# SPDX-License-Identifier: MIT
"""The OpenAPI document, written out: it says what this server, with its settings, accepts and answers."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

import agentbox
from agentbox.config import Settings
from agentbox.models import Layer, Outcome
from agentbox.replay.divergence import DivergenceKind
from agentbox.server import fields
from agentbox.server.sandboxes import openapi_paths, openapi_schemas
from agentbox.server.sandboxes.backends import durable_backends
from agentbox.server.schemas import RunBody

Json = dict[str, Any]

_PROBLEMS = {
    "400": "What the request asks for cannot be done (language, backend, snapshot, allowlist, policy); nothing ran",
    "401": "A key is missing or unknown",
    "403": "The Origin header names a page of another site",
    "404": "Nothing of that name for this key",
    "405": "The path exists; the method does not",
    "409": "The snapshot would pass the caller's quota; `result` holds what the program did",
    "413": "The body is larger than the operator allows",
    "415": "The body has a Content-Encoding",
    "421": "The Host header names another server",
    "429": "Too many runs wait, this one waited too long, or too many large bodies are in memory; nothing ran",
    "500": "A bug of agentbox",
    "503": "The box could not be built, its trace not be written, its files not be kept, or the server is stopping",
}


def _object(properties: Json, *, closed: bool = True, required: list[str] | None = None) -> Json:
    found: Json = {"type": "object", "properties": properties, "required": required or list(properties)}
    if closed:
        found["additionalProperties"] = False
    return found


def _nullable(kind: str, **more: Any) -> Json:
    return {"type": [kind, "null"], **more}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_MILLISECONDS: Json = {"type": "number", "minimum": 0}


def _result_schema() -> Json:
    layers = {"type": "string", "enum": [layer.value for layer in Layer]}
    return _object(
        {
            "stdout": _TEXT,
            "stderr": _TEXT,
            "exit_code": {"type": "integer", "description": "128 + n after signal n"},
            "duration_ms": _COUNT,
            "language": {"type": "string", "enum": list(fields.LANGUAGES)},
            "backend": _TEXT,
            "snapshot_id": _nullable("string"),
            "limits_applied": _object(
                {
                    "timeout_seconds": {"type": "integer", "minimum": 0},
                    "memory_mb": _COUNT,
                    "cpus": {"type": "number", "minimum": 0},
                    "pids": _COUNT,
                    "disk_mb": _COUNT,
                    "max_output_bytes": _COUNT,
                }
            ),
            "oom_killed": {"type": "boolean"},
            "network_isolated": {"type": "boolean"},
            "egress_allowlist": {"type": "array", "items": _TEXT},
            "run_id": _TEXT,
            "outcome": {"type": "string", "enum": [outcome.value for outcome in Outcome]},
            "signal": _nullable("integer"),
            "stdout_bytes": _COUNT,
            "stderr_bytes": _COUNT,
            "stdout_truncated": {"type": "boolean"},
            "stderr_truncated": {"type": "boolean"},
            "stdout_base64": _nullable("string", description="the exact bytes, only where they are not UTF-8"),
            "stderr_base64": _nullable("string", description="the exact bytes, only where they are not UTF-8"),
            "files": {
                "type": "object",
                "additionalProperties": _object({"base64": _TEXT, "bytes": _COUNT}),
            },
            "enforcement": _object(
                {
                    name: {**layers, "description": f"what held {name}"}
                    for name in ("filesystem", "network", "exec", "memory", "pids", "cpu", "disk")
                }
            ),
            "warnings": {"type": "array", "items": _TEXT},
            "timings": _object(
                {
                    "queued_ms": {**_MILLISECONDS, "description": "waiting for a place; 0 where one was free"},
                    "start_ms": _MILLISECONDS,
                    "run_ms": _MILLISECONDS,
                    "start": {
                        "type": "string",
                        "enum": ["warm", "forked", "made", "cold"],
                        "description": "what was ready before: box and interpreter, an interpreter that forked into a "
                        "new box, the view of a new box, nothing",
                    },
                }
            ),
            "usage": _object(
                {
                    "cpu_ms": _nullable("number"),
                    "max_memory_bytes": _nullable("integer"),
                    "processes": _nullable("integer"),
                }
            ),
            "denials": {
                "type": "array",
                "description": "what the policy did not allow; the first ones, the rest is in the trace",
                "items": _denial_schema(),
            },
            "trace": {
                "description": "records of the sealed trace, and the hash of the last one; null without a trace",
                "anyOf": [_object({"count": _COUNT, "sha": _TEXT}), {"type": "null"}],
            },
            "egress": {
                "type": "object",
                "description": "what went through the gateway, by host",
                "additionalProperties": _object({"connections": _COUNT, "bytes_up": _COUNT, "bytes_down": _COUNT}),
            },
        }
    )


def _denial_schema() -> Json:
    layers = {"type": "string", "enum": [layer.value for layer in Layer]}
    return _object(
        {
            "layer": {**layers, "description": "what held it"},
            "effect": {"type": "string", "enum": ["read", "write", "net", "exec", "env"]},
            "target": {"type": "string", "description": "a file, host, program's file or variable's name"},
            "reason": _TEXT,
            "rule": _nullable("string", description="the rule that denies it"),
            "rule_missing": _nullable("string", description="a rule that would allow it"),
            "trace_index": {**_COUNT, "description": "its record in the trace"},
            "hint": {"type": "string", "description": "what would help"},
        }
    )


def _replay_schema() -> Json:
    step = {"anyOf": [{"type": "object"}, {"type": "null"}]}
    return _object(
        {
            "ok": {"type": "boolean", "description": "whether everything was as it was recorded"},
            "started": {"type": "boolean", "description": "false when something did not fit before"},
            "matched": {**_COUNT, "description": "recorded steps that happened again"},
            "total": {**_COUNT, "description": "recorded steps"},
            "exit_code": _nullable("integer", description="of the replayed program; null when it was ended"),
            "divergences": {
                "type": "array",
                "items": _object(
                    {
                        "kind": {"type": "string", "enum": [kind.value for kind in DivergenceKind]},
                        "step": {**_COUNT, "description": "the record of the trace that was expected"},
                        "message": _TEXT,
                        "lane": {"type": "string", "description": "the thread or task"},
                        "expected": {**step, "description": "what was recorded"},
                        "observed": {**step, "description": "what came"},
                        "file": _nullable("string", description="where the program stood"),
                        "line": _nullable("integer"),
                        "diff": {"type": "array", "items": _TEXT, "description": "lines of a unified diff"},
                    }
                ),
            },
            "notes": {"type": "array", "items": _TEXT},
            "trace": {"type": "string", "description": "empty: it is at /v1/runs/{run_id}/trace"},
        }
    )


def _problem_schemas() -> Json:
    always = {"code": _TEXT, "hint": _TEXT, "request_id": _TEXT}
    fault = _object(
        {
            "type": _TEXT,
            "loc": {"type": "array", "items": {"type": ["string", "integer"]}},
            "msg": _TEXT,
            "input": {"description": "what was sent, cut to a bounded size"},
            "ctx": {"type": "object"},
        },
        required=["type", "loc", "msg", "input"],
    )
    return {
        "Problem": _object(
            {
                "detail": _TEXT,
                **always,
                "policy": {**_policy_fault_schema(), "description": "with code policy_syntax"},
                "errno": {"type": "string", "description": "of files and programs of a sandbox: ENOENT, EACCES, ..."},
                "path": _nullable("string", description="the program that cannot be started"),
                "retry_after_seconds": {"type": "integer", "minimum": 1, "description": "as the header Retry-After"},
                "result": {**_ref("RunResult"), "description": "of a program that ran, when its files cannot be kept"},
            },
            required=["detail", *always],
        ),
        "TimedOut": _object({"detail": _TEXT, **always, "result": _ref("RunResult")}, required=["detail", *always]),
        "InvalidBody": _object({"detail": {"type": "array", "items": fault}, **always}),
    }


def _policy_fault_schema() -> Json:
    return _object(
        {
            "line": {"type": "integer", "minimum": 1},
            "column": {"type": "integer", "minimum": 1},
            "problem": {"type": "string", "description": "a stable word for the kind of fault"},
            "reason": _TEXT,
            "source": {"type": "string", "description": "the line, where it is short enough to be shown"},
            "caret": {"type": "string", "description": "points at the column when it is shown below source"},
        }
    )


def _request_schemas(settings: Settings, backend: str) -> Json:
    _, top = models_json_schema([(RunBody, "validation")], ref_template="#/components/schemas/{model}")
    schemas: Json = top["$defs"]
    run = schemas["RunBody"]["properties"]
    backends = list(dict.fromkeys([backend, *(name for name in settings.allowed_backends if name != "auto")]))
    run["backend"]["anyOf"] = [{"type": "string", "enum": backends}, {"type": "null"}]
    for name in ("files", "env"):
        _close_names(run[name]["anyOf"][0])
    run["egress_allowlist"]["anyOf"][0]["items"] = _allowlist_items(settings)
    schemas["RunBody"]["examples"] = [
        {"code": "print(sum(range(10)))"},
        {"code": "console.log(6 * 7)", "language": "node", "limits": {"timeout_seconds": 5, "memory_mb": 256}},
    ]
    return schemas


def _close_names(mapping: Json) -> None:
    """pydantic writes a pattern of names as patternProperties, which lets other names pass."""
    [(pattern, values)] = mapping.pop("patternProperties").items()
    mapping["propertyNames"]["pattern"] = pattern
    mapping["additionalProperties"] = values


def _allowlist_items(settings: Settings) -> Json:
    if settings.egress_allowlist is None:
        return {"type": "string", "maxLength": 260, "pattern": fields.EGRESS_PATTERN}
    hosts = sorted({entry.partition(":")[0] for entry in settings.egress_allowlist})
    return {"type": "string", "enum": hosts} if hosts else {"not": {}}


def _answer(description: str, schema: Json | None, **headers: str) -> Json:
    found: Json = {
        "description": description,
        "headers": {
            "X-Request-Id": {
                "description": "the id sent with the request, or a new one",
                "required": True,
                "schema": {"type": "string"},
            }
        },
    }
    for name, text in headers.items():
        found["headers"][name.replace("_", "-")] = {"description": text, "schema": {"type": "string"}, "required": True}
    if schema is not None:
        found["content"] = {"application/json": {"schema": schema}}
    return found


def _problems(*statuses: str, keyed: bool) -> Json:
    found = {}
    for status in ("403", "421", "405", *(["401"] if keyed else []), *statuses):
        extra = {"401": {"WWW_Authenticate": "Bearer"}, "429": {"Retry_After": "seconds"}, "405": {"Allow": "methods"}}
        found[status] = _answer(_PROBLEMS[status], _ref("Problem"), **extra.get(status, {}))
    return found


def _run_operation(*, keyed: bool) -> Json:
    success = _answer("The program ended, well or not: see outcome and exit_code", _ref("RunResult"))
    success["content"]["text/event-stream"] = {
        "schema": {"type": "string"},
        "example": 'event: stdout\ndata: {"seq":1,"text":"45\\n"}\n\nevent: result\ndata: {"stdout":"45\\n"}\n\n',
    }
    return {
        "operationId": "run",
        "summary": "Execute code in a box",
        "description": (
            "With `Accept: text/event-stream` the answer is a stream: `stdout` and `stderr` events with "
            '`{"seq","text"}` or, where bytes are not UTF-8, `{"seq","b64"}`; then one `result` event with the body of '
            "200, also after a timeout, or one `error` event. A run that has to wait begins with one `queued` event, "
            '`{"waiting"}`: how many runs wait, with this one. A comment keeps quiet streams open. Closing the '
            "connection ends the run, or its waiting."
        ),
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref("RunBody")}}},
        "responses": {
            "200": success,
            "408": _answer(
                "The program passed its timeout (`result` holds what it did), or the body arrived too slowly",
                _ref("TimedOut"),
            ),
            "422": _answer("The body does not have the right form; nothing ran", _ref("InvalidBody")),
            **_problems("400", "409", "413", "415", "429", "500", "503", keyed=keyed),
        },
    }


def _snapshot_paths(*, keyed: bool) -> Json:
    parameter = {
        "name": "snapshot_id",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    }
    listed = _object({"snapshots": {"type": "array", "items": _ref("Snapshot")}})
    return {
        "/v1/snapshots": {
            "get": {
                "operationId": "list_snapshots",
                "summary": "Snapshots of this key",
                "responses": {"200": _answer("All of them", listed), **_problems("500", keyed=keyed)},
            }
        },
        "/v1/snapshots/{snapshot_id}": {
            "parameters": [parameter],
            "get": {
                "operationId": "get_snapshot",
                "summary": "One snapshot",
                "responses": {
                    "200": _answer("What is known about it", _ref("Snapshot")),
                    **_problems("404", "500", keyed=keyed),
                },
            },
            "delete": {
                "operationId": "delete_snapshot",
                "summary": "Remove a snapshot",
                "responses": {"204": _answer("It is gone", None), **_problems("404", "500", keyed=keyed)},
            },
        },
    }


def _trace_paths(*, keyed: bool) -> Json:
    parameter = {
        "name": "run_id",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    }
    lines = _answer("JSON Lines, as they were written; `agentbox verify` takes the file", None)
    lines["content"] = {"application/jsonl": {"schema": {"type": "string"}}}
    pem = _answer("The key as PEM text, for `agentbox verify --key`", None)
    pem["content"] = {"application/x-pem-file": {"schema": {"type": "string"}}}
    return {
        "/v1/runs/{run_id}/trace": {
            "parameters": [parameter],
            "get": {
                "operationId": "get_trace",
                "summary": "The trace of a run of this key that has ended",
                "responses": {"200": lines, **_problems("404", "500", keyed=keyed)},
            },
        },
        "/v1/runs/{run_id}/replay": {
            "parameters": [parameter],
            "post": {
                "operationId": "replay_run",
                "summary": "Run it again, answered from its trace, and compare",
                "description": (
                    "For runs that were asked for with `record`. The program has no network, and starts no other."
                ),
                "responses": {
                    "200": _answer("What the replay found, the same or not", _ref("Replay")),
                    **_problems("400", "404", "429", "500", "503", keyed=keyed),
                },
            },
        },
        "/v1/key": {
            "get": {
                "operationId": "get_key",
                "summary": "The public key that verifies this server's traces",
                "responses": {"200": pem, **_problems("500", keyed=keyed)},
            }
        },
    }


def _snapshot_schema() -> Json:
    return _object(
        {
            "snapshot_id": _TEXT,
            "created_at": {"type": "number", "description": "seconds since 1970, UTC"},
            "packed_bytes": _COUNT,
            "unpacked_bytes": _nullable("integer"),
            "entries": _nullable("integer"),
        }
    )


def document(settings: Settings, backend: str, *, keyed: bool) -> Json:
    """The document for a server with these settings, whose default backend is `backend`; `keyed`: it needs a key."""
    runs = {
        **_object({"working": _COUNT, "waiting": _COUNT}),
        "description": "for callers with a key, if one is needed",
    }
    health = _object(
        {"status": {"const": "ok"}, "version": _TEXT, "backend": _TEXT, "runs": runs},
        required=["status", "version", "backend"] if keyed else None,
    )
    found: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "agentbox",
            "version": agentbox.__version__,
            "summary": "Runs code that an AI agent wrote, in a box",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "paths": {
            "/health": {
                "get": {
                    "operationId": "health",
                    "summary": "Whether the server answers; needs no key",
                    "security": [],
                    "responses": {"200": _answer("It does", health), **_problems(keyed=False)},
                }
            },
            "/v1/run": {"post": _run_operation(keyed=keyed)},
            **_snapshot_paths(keyed=keyed),
            **_trace_paths(keyed=keyed),
            **openapi_paths.paths(keyed=keyed),
        },
        "components": {
            "schemas": {
                **_request_schemas(settings, backend),
                **_problem_schemas(),
                "RunResult": _result_schema(),
                "Replay": _replay_schema(),
                "Snapshot": _snapshot_schema(),
                **openapi_schemas.schemas(_denial_schema(), durable_backends(settings)),
            }
        },
    }
    if keyed:
        found["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
        found["security"] = [{"bearer": []}, {"apiKey": []}]
    return found
