# SPDX-License-Identifier: MIT
"""Parts of the OpenAPI document of which the descriptions of sandboxes are made: parameters, answers, operations."""

from __future__ import annotations

from typing import Any

from agentbox.server import fields
from agentbox.server.sandboxes.kinds import MAX_SECONDS, USERS

Json = dict[str, Any]

LARGEST_WHOLE = (1 << 53) - 1
_PROBLEMS = {
    "400": "What is asked for cannot be done: the backend, the policy, or a program that is not there (with `errno`)",
    "401": "A key is missing or unknown",
    "403": "The Origin header names a page of another site; or, with `errno`, the box's user may not do that",
    "404": "Nothing of that name for this key; or, with `errno`, no such file",
    "405": "The path exists; the method does not",
    "409": "It is not in the state for that: a command that has ended, as many sandboxes as the key may have; or, with "
    "`errno`, files that are in the way",
    "410": "The box is gone, its workspace is kept: reset makes it anew",
    "413": "More than the operator allows",
    "415": "The body has a Content-Encoding",
    "421": "The Host header names another server",
    "429": "Too many sandboxes of all keys, or too many large bodies in memory",
    "500": "A bug of agentbox",
    "503": "The box could not be built, the keeper of sandboxes cannot be reached, or the server is stopping",
    "507": "The disk is full; with `errno`",
}
_HEADERS = {
    "401": {"WWW-Authenticate": "Bearer"},
    "429": {"Retry-After": "seconds"},
    "405": {"Allow": "methods"},
}
# Of whatever needs a box, is about a file, or has a body.
BOX = ("409", "410", "503")
FILES = (*BOX, "507")
BODY = ("413", "415", "408")

BASE = "/v1/sandboxes"
ONE = f"{BASE}/{{sandbox_id}}"
COMMAND = f"{ONE}/commands/{{command_id}}"
BYTES: Json = {"type": "string", "format": "binary"}
PATH = {"type": "string", "minLength": 1, "maxLength": 4096, "pattern": fields.NO_NUL}


def ref(name: str) -> Json:
    """A schema by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def closed(properties: Json, required: list[str] | None = None) -> Json:
    """An object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def query(name: str, schema: Json, description: str, *, required: bool = False) -> Json:
    """A parameter of the query."""
    return {"name": name, "in": "query", "required": required, "description": description, "schema": schema}


def named(name: str, pattern: str) -> Json:
    """A part of the path."""
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "pattern": pattern}}


SANDBOX = named("sandbox_id", "^sbx-[0-9a-f]{16}$")
COMMAND_ID = named("command_id", "^cmd-[0-9a-f]{16}$")


def whole(low: int, high: int, default: int) -> Json:
    """A whole number."""
    return {"type": "integer", "minimum": low, "maximum": high, "default": default}


def seconds(default: float | None = 0) -> Json:
    """A number of seconds."""
    return {"type": "number", "minimum": 0, "maximum": MAX_SECONDS, "default": default}


def choice(*words: str) -> Json:
    """One of some words; the first is the default."""
    return {"type": "string", "enum": list(words), "default": words[0]}


def path_parameters(*, required: bool = True) -> list[Json]:
    """The file that is meant, and as whom."""
    return [
        query(
            "path",
            PATH,
            "absolute in the box, or relative to /work; bytes that are not UTF-8 as %XX",
            required=required,
        ),
        user_parameter(),
    ]


def user_parameter() -> Json:
    """As whom."""
    return query("user", {"type": "string", "enum": list(USERS)}, "who does it; the sandbox's user when not said")


def headed(description: str, headers: dict[str, str]) -> Json:
    """An answer with further headers."""
    found = {"X-Request-Id": "the id sent with the request, or a new one", **headers}
    return {
        "description": description,
        "headers": {
            name: {"description": text, "required": True, "schema": {"type": "string"}} for name, text in found.items()
        },
    }


def answer(description: str, schema: Json | None = None, media_type: str = "application/json") -> Json:
    """An answer."""
    found = headed(description, {})
    if schema is not None:
        found["content"] = {media_type: {"schema": schema}}
    return found


def told(found: Json) -> Json:
    """An answer of JSON that tells how far it is to clients that ask for events."""
    text = (
        '%s. With `Accept: text/event-stream` a stream: `progress` events, `{"bytes"}` copied so far, then `done` with '
        "what is the answer otherwise, or `error` with its `status`."
    )
    events = {
        "schema": {"type": "string"},
        "example": 'event: progress\ndata: {"bytes":1048576}\n\nevent: done\ndata: {}\n\n',
    }
    description = text % found["description"]
    return {**found, "description": description, "content": {**found["content"], "text/event-stream": events}}


def operation(
    identifier: str,
    summary: str,
    success: dict[str, Json],
    *statuses: str,
    parameters: list[Json] | None = None,
    body: Json | None = None,
    description: str = "",
    keyed: bool,
) -> Json:
    """One operation with everything that it answers."""
    found: Json = {"operationId": identifier, "summary": summary, "responses": dict(success)}
    if description:
        found["description"] = description
    if parameters:
        found["parameters"] = parameters
    if body is not None:
        found["requestBody"] = body
    # Any of them may be answered when the keeper cannot be reached.
    wanted = ["403", "421", "405", *(["401"] if keyed else []), "500", "503", *statuses]
    for status in dict.fromkeys(wanted):
        if status in ("422", "408"):
            continue
        problem = headed(_PROBLEMS[status], _HEADERS.get(status, {}))
        problem["content"] = {"application/json": {"schema": ref("Problem")}}
        found["responses"][status] = problem
    if "408" in statuses:
        found["responses"]["408"] = answer("The body arrived too slowly", ref("Problem"))
    if "422" in statuses:
        found["responses"]["422"] = answer("The request does not have the right form", ref("InvalidBody"))
    return found


def json_body(schema: str, *, required: bool = True) -> Json:
    """A body of JSON."""
    return {"required": required, "content": {"application/json": {"schema": ref(schema)}}}


def raw_body(media_type: str, description: str) -> Json:
    """A body of bytes."""
    return {
        "required": True,
        "description": description,
        "content": {media_type: {"schema": {"type": "string", "format": "binary"}}},
    }
