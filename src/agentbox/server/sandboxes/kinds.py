# SPDX-License-Identifier: MIT
"""Types of fields of requests about sandboxes: what each accepts, and the JSON Schema that says exactly the same."""

from __future__ import annotations

import signal
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from agentbox.server import fields

MAX_SECONDS = 366 * 86400
MAX_WordS = 1000
USERS = ("agent", "root")
RUNNING, PAUSED, GONE = "running", "paused", "gone"
RESOURCES = ("filesystem", "network", "exec", "memory", "pids", "cpu", "disk")
WORKSPACE_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
IMAGE_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$"
TOOL_PATTERN = "^[a-z_]{1,64}$"
SNAPSHOT_PATTERN = "^[A-Za-z0-9][A-Za-z0-9 .:_-]{0,127}$"
SIGNALS = {number.name: int(number) for number in signal.Signals if 0 < number < 32}


def _whole(value: object) -> object:
    # JSON has one kind of number: 64.0 is the integer 64.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _integer(low: int, high: int) -> Any:
    return Annotated[int, Field(strict=True, ge=low, le=high), BeforeValidator(_whole)]


def _number(low: float, high: float) -> Any:
    return Annotated[float, Field(strict=True, ge=low, le=high, allow_inf_nan=False)]


def _text(low: int, high: int) -> Any:
    return Annotated[
        str,
        Field(strict=True, min_length=low, max_length=high, json_schema_extra={"pattern": fields.NO_NUL}),
        AfterValidator(fields.without_nul),
    ]


def _matching(pattern: str) -> Any:
    return Annotated[
        str,
        Field(strict=True, json_schema_extra={"pattern": pattern}),
        AfterValidator(fields.matching(pattern, "text", f"Must match {pattern}")),
    ]


def _one_of(words: tuple[str, ...]) -> Any:
    pattern = "^(?:{})$".format("|".join(words))
    return Annotated[
        str,
        Field(strict=True),
        AfterValidator(fields.matching(pattern, "choice", f"Must be one of {', '.join(words)}")),
        WithJsonSchema({"type": "string", "enum": list(words)}),
    ]


Truth = Annotated[bool, Field(strict=True)]
PlainText = Annotated[str, Field(strict=True)]
Path = _text(1, 4096)
ShellText = _text(0, 1 << 17)
_Word = Annotated[
    str,
    Field(strict=True, max_length=fields.MAX_TEXT_ARGUMENT_CHARACTERS, json_schema_extra={"pattern": fields.NO_NUL}),
    AfterValidator(fields.without_nul),
]
Words = Annotated[list[_Word], Field(min_length=1, max_length=MAX_WordS)]
BackendName = _text(1, 64)
Policy = Annotated[str, Field(strict=True, max_length=16 << 10)]
Image = _matching(IMAGE_PATTERN)
WorkspaceName = _matching(WORKSPACE_PATTERN)
SnapshotId = _matching("^[0-9a-f]{32}$")
SnapshotName = _matching(SNAPSHOT_PATTERN)
User = _one_of(USERS)
Signal = _one_of(tuple(sorted(SIGNALS)))
Octal = _matching("^0?[0-7]{3}$")
MemoryMb = _integer(16, 1 << 20)
Cpus = _number(0.05, 1024)
Pids = _integer(8, 1 << 20)
DiskMb = _integer(1, 1 << 20)
OutputBytes = _integer(1024, 1 << 30)
Length = Annotated[int, Field(strict=True, ge=1, le=65535), BeforeValidator(_whole)]
Copies = _integer(1, 64)
Size = Annotated[list[Length], Field(min_length=2, max_length=2)]
Seconds = _number(0, MAX_SECONDS)
SomeSeconds = _number(0.001, MAX_SECONDS)
WholeSeconds = _number(1, MAX_SECONDS)
GraceSeconds = _number(0, 3600)
Environment = Annotated[dict[fields.EnvName, _Word], Field(max_length=256)]
Changes = Annotated[dict[fields.EnvName, _Word | None], Field(max_length=256)]
