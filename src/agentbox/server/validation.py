# SPDX-License-Identifier: MIT
"""Bytes of a body become a RunBody, or a list of faults in the form of the first API, cut to a bounded size."""

from __future__ import annotations

import difflib
import math
import re
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from agentbox.server.problems import Problem, invalid
from agentbox.server.schemas import EncodedContent, LimitsBody, RunBody

_Body = TypeVar("_Body", bound=BaseModel)

MAX_FAULTS = 20
MAX_ECHO_CHARACTERS = 200
MAX_ECHO_ITEMS = 20
_MESSAGE_POSITION = re.compile(r" at line (\d+) column (\d+)\Z")


def parse_run(raw: bytes, content_type: str) -> RunBody:
    """The body of a run. Raises Problem (422)."""
    return parse_body(raw, content_type, RunBody)


def parse_body(raw: bytes, content_type: str, model: type[_Body]) -> _Body:
    """The body as the model has it. Raises Problem (422)."""
    value = parse_json(raw, content_type)
    if not isinstance(value, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise invalid([{"type": "model_attributes_type", "loc": ["body"], "msg": message, "input": bounded(value)}])
    try:
        return model.model_validate(value)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=True)
        raise invalid([_fault(dict(fault), model) for fault in faults[:MAX_FAULTS]]) from None


def parse_json(raw: bytes, content_type: str) -> object:
    """The JSON value. Of a name that occurs twice in an object the last counts. Raises Problem (422)."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not re.fullmatch(r"application/[a-z0-9.-]+\+json", media_type):
        message = "Input should be a valid dictionary or object to extract fields from"
        shown = bounded(raw[: 4 * MAX_ECHO_CHARACTERS].decode("utf-8", "replace"))
        raise invalid(
            [
                {
                    "type": "model_attributes_type",
                    "loc": ["body"],
                    "msg": f"{message}; send Content-Type: application/json",
                    "input": shown,
                }
            ]
        )
    if not raw:
        raise invalid([{"type": "missing", "loc": ["body"], "msg": "Field required", "input": None}])
    try:
        return from_json(raw, allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        raise _not_json(raw, str(error)) from None


def _not_json(raw: bytes, message: str) -> Problem:
    position = 0
    found = _MESSAGE_POSITION.search(message)
    if found:
        line, column = int(found[1]), int(found[2])
        start = 0
        for _ in range(line - 1):
            start = raw.find(b"\n", start) + 1
        position = start + max(0, column - 1)
        message = message[: found.start()]
    return invalid(
        [
            {
                "type": "json_invalid",
                "loc": ["body", position],
                "msg": "JSON decode error",
                "input": {},
                "ctx": {"error": message[:MAX_ECHO_CHARACTERS]},
            }
        ]
    )


def _fault(fault: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    kind, loc = fault["type"], [_short(part) for part in fault["loc"]]
    message = fault["msg"]
    if kind == "model_type":
        kind = "model_attributes_type"
        message = "Input should be a valid dictionary or object to extract fields from"
    elif kind == "extra_forbidden":
        message = _unknown_field(fault["loc"], model)
    shaped = {"type": kind, "loc": ["body", *loc], "msg": message, "input": bounded(fault.get("input"))}
    if fault.get("ctx"):
        shaped["ctx"] = {name: bounded(item) for name, item in fault["ctx"].items()}
    return shaped


def _short(part: int | str) -> int | str:
    return part if isinstance(part, int) or len(part) <= 64 else part[:64] + "…"


def _unknown_field(loc: tuple[int | str, ...], model: type[BaseModel]) -> str:
    name = str(loc[-1])[:64]
    if len(loc) == 1:
        known = list(model.model_fields)
    elif loc[0] == "limits" and len(loc) == 2:
        known = list(LimitsBody.model_fields)
    else:
        known = list(EncodedContent.model_fields)
    near = difflib.get_close_matches(name, known, 1, cutoff=0.4)
    limits = LimitsBody.model_fields if len(loc) == 1 and model is RunBody else ()
    if inner := difflib.get_close_matches(name, limits, 1, cutoff=0.4):
        # A limit that stands beside `limits` instead of in it.
        candidates = {inner[0]: f"limits.{inner[0]}", **{text: text for text in near}}
        near = [candidates[text] for text in difflib.get_close_matches(name, candidates, 1, cutoff=0.4)]
    meant = f"did you mean '{near[0]}'?" if near else f"known fields: {', '.join(known)}"
    return f"Unknown field {name!r}: {meant}"


def bounded(value: object, depth: int = 2) -> Any:
    """What a fault shows of its input: small JSON as it is, long text and deep or wide structures cut."""
    if isinstance(value, str):
        return value if len(value) <= MAX_ECHO_CHARACTERS else value[:MAX_ECHO_CHARACTERS] + "…"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= 128 else "(a very large integer)"
    if isinstance(value, dict):
        if depth == 0 or len(value) > MAX_ECHO_ITEMS:
            return f"(object with {len(value)} fields)"
        return {str(name)[:64]: bounded(item, depth - 1) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        if depth == 0 or len(value) > MAX_ECHO_ITEMS:
            return f"(list of {len(value)})"
        return [bounded(item, depth - 1) for item in value]
    return str(value)[:MAX_ECHO_CHARACTERS]
