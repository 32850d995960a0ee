# SPDX-License-Identifier: MIT
"""Field types of request bodies: what each accepts, and the JSON Schema that says exactly the same.

Numbers and booleans of the first API are lax (`"2"`, `true`, `64.0`); fields that came later are strict.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from agentbox.isolation.interpreters import ALIASES, INTERPRETERS

MAX_CODE_CHARACTERS = 4 << 20
MAX_TEXT_ARGUMENT_CHARACTERS = 30_000  # four bytes each stay below the kernel's 128 KiB for one string
MAX_PATH_CHARACTERS = 1000
LANGUAGES = (*INTERPRETERS, *ALIASES)

NO_NUL = "^[^\\u0000]*$"
# A segment is at most 255 bytes: 255 ASCII characters, or 63 of which some need up to four bytes. `.` and `..` are no
# names. The two cases exclude each other: a validator that backtracks would else need 2**64 steps for a long path.
_SEGMENT = r"(?!\.{1,2}(?:/|$))(?:[\u0001-\u002e\u0030-\u007f]{1,255}(?=/|$)|(?=[^/]*[^\u0000-\u007f])[^/\u0000]{1,63})"
PATH_PATTERN = f"^{_SEGMENT}(?:/{_SEGMENT}){{0,63}}$"
ENV_NAME_PATTERN = "^[^=\\u0000]+$"
BASE64_PATTERN = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
EGRESS_PATTERN = (
    "^[A-Za-z0-9._-]+(?::(?!0+$)(?:[0-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]|[0-9]{1,4}))?$"
)
LANGUAGE_PATTERN = "^(?:{})$".format(
    "|".join("".join(f"[{letter}{letter.upper()}]" for letter in name) for name in LANGUAGES)
)
TIMEOUT_TEXT = "^(?:[1-9][0-9]?|[12][0-9]{2}|300)$"
MEMORY_TEXT = "^(?:1[6-9]|[2-9][0-9]|[1-9][0-9]{2}|[1-7][0-9]{3}|80[0-9]{2}|81[0-8][0-9]|819[0-2])$"
OUTPUT_TEXT = "^(?:102[4-9]|10[3-9][0-9]|1[1-9][0-9]{2}|[2-9][0-9]{3}|[1-9][0-9]{4,14})$"
BOOLEAN_TEXT = "^(?:[01]|[oO][nN]|[oO][fF][fF]|[tTfFyYnN]|[tT][rR][uU][eE]|[fF][aA][lL][sS][eE]|[yY][eE][sS]|[nN][oO])$"
_DIGITS = re.compile(r"-?(?:0|[1-9][0-9]*)\Z")


def _plain_digits(value: object) -> object:
    if isinstance(value, str) and not (len(value) < 32 and _DIGITS.match(value)):
        raise PydanticCustomError(
            "int_parsing", "Input should be a valid integer, unable to parse string as an integer"
        )
    return value


def matching(pattern: str, kind: str, message: str) -> Callable[[str], str]:
    """A check that a text is what the pattern describes, of that kind of fault and with that message."""
    compiled = re.compile(pattern.removesuffix("$") + r"\Z", re.DOTALL)

    def check(value: str) -> str:
        if not compiled.match(value):
            raise PydanticCustomError(kind, message)
        return value

    return check


without_nul = matching(NO_NUL, "nul_character", "Text must not contain a NUL character")


def _relative_path(value: str) -> str:
    """What PATH_PATTERN says, without a regular expression: these texts come from strangers."""
    names = value.split("/")
    wrong = (name in {"", ".", ".."} or "\0" in name or len(name) > (255 if name.isascii() else 63) for name in names)
    if len(names) > 64 or any(wrong):
        raise PydanticCustomError(
            "relative_path",
            "Must be a relative path of 1 to 64 names; none may be empty, '.', '..', over 255 bytes or hold NUL",
        )
    return value


def _lax_integer(low: int, high: int, text: str, *also: dict[str, object]) -> Any:
    schema: dict[str, object] = {
        "anyOf": [
            {"type": "integer", "minimum": low, "maximum": high},
            {"type": "string", "pattern": text},
            *also,
            {"type": "null"},
        ],
        "default": None,
    }
    number = Annotated[int, BeforeValidator(_plain_digits), Field(ge=low, le=high)]
    return Annotated[number | None, WithJsonSchema(schema)]


TimeoutSeconds = _lax_integer(1, 300, TIMEOUT_TEXT, {"type": "boolean", "enum": [True]})
MemoryMb = _lax_integer(16, 8192, MEMORY_TEXT)
MaxOutputBytes = _lax_integer(1024, 10**15 - 1, OUTPUT_TEXT)


def _plain_boolean(value: object) -> object:
    if isinstance(value, str) and not re.match(BOOLEAN_TEXT.removesuffix("$") + r"\Z", value):
        raise PydanticCustomError("bool_parsing", "Input should be a valid boolean, unable to interpret input")
    return value


LaxBoolean = Annotated[
    bool,
    BeforeValidator(_plain_boolean),
    WithJsonSchema(
        {
            "anyOf": [{"type": "boolean"}, {"enum": [0, 1]}, {"type": "string", "pattern": BOOLEAN_TEXT}],
            "default": False,
        }
    ),
]

Code = Annotated[
    str,
    Field(min_length=1, max_length=MAX_CODE_CHARACTERS, json_schema_extra={"pattern": NO_NUL}),
    AfterValidator(without_nul),
]
Argument = Annotated[
    str,
    Field(max_length=MAX_TEXT_ARGUMENT_CHARACTERS, json_schema_extra={"pattern": NO_NUL}),
    AfterValidator(without_nul),
]
EnvName = Annotated[
    str,
    Field(min_length=1, max_length=256, json_schema_extra={"pattern": ENV_NAME_PATTERN}),
    AfterValidator(matching(ENV_NAME_PATTERN, "env_name", "A variable's name must not contain '=' or a NUL character")),
]
RelativePath = Annotated[
    str,
    Field(min_length=1, max_length=MAX_PATH_CHARACTERS, json_schema_extra={"pattern": PATH_PATTERN}),
    AfterValidator(_relative_path),
]
Base64Text = Annotated[
    str,
    Field(json_schema_extra={"pattern": BASE64_PATTERN, "contentEncoding": "base64"}),
    AfterValidator(matching(BASE64_PATTERN, "base64", "Must be standard base64 with padding and no white space")),
]
EgressEntry = Annotated[str, Field(max_length=260)]


def decoded(content: object) -> bytes:
    """Bytes of a content field: text, or an object with `base64`."""
    if isinstance(content, str):
        return content.encode()
    return base64.b64decode(content.base64)  # type: ignore[attr-defined]
