# SPDX-License-Identifier: MIT
"""The patterns in the schema say the same as the code that validates."""

from __future__ import annotations

import json
import re

import pytest

from agentbox.config import parse_allowlist
from agentbox.server import fields
from agentbox.server.problems import Problem
from agentbox.server.validation import parse_run


def accepts(body: dict[str, object]) -> bool:
    try:
        parse_run(json.dumps(body).encode(), "application/json")
    except Problem:
        return False
    return True


@pytest.mark.parametrize(
    ("pattern", "low", "high", "upto"),
    [
        (fields.TIMEOUT_TEXT, 1, 300, 1500),
        (fields.MEMORY_TEXT, 16, 8192, 12000),
        (fields.OUTPUT_TEXT, 1024, 10**15 - 1, 12000),
    ],
)
def test_pattern_of_a_number_as_text_is_its_range(pattern: str, low: int, high: int, upto: int) -> None:
    numbers = [*range(upto), 10**14, 10**15 - 1, 10**15]
    assert [n for n in numbers if bool(re.search(pattern, str(n))) != (low <= n <= high)] == []


@pytest.mark.parametrize("text", ["2", "02", " 2", "+2", "2.0", "1_0", "2\n", "", "-1", "٣"])
def test_number_as_text_is_accepted_exactly_when_the_schema_says_so(text: str) -> None:
    allowed = bool(re.fullmatch(fields.TIMEOUT_TEXT.strip("^$"), text))
    assert accepts({"code": "1", "limits": {"timeout_seconds": text}}) == allowed


@pytest.mark.parametrize("text", ["yes", "YES", "on", "t", "n", "1", "01", "truth", "true ", ""])
def test_boolean_as_text_is_accepted_exactly_when_the_schema_says_so(text: str) -> None:
    allowed = bool(re.fullmatch(fields.BOOLEAN_TEXT.strip("^$"), text))
    assert accepts({"code": "1", "snapshot": text}) == allowed


@pytest.mark.parametrize(
    "path",
    [
        "a",
        "a/b",
        ".a",
        "..a",
        "a..",
        ".",
        "..",
        "a/..",
        "../a",
        "/a",
        "a/",
        "a\nb",
        "a\n",
        "é" * 63,
        "é" * 64,
        "a" * 255,
        "a" * 256,
        "/".join("a" * 64),
        "/".join("a" * 65),
        "é/" * 63 + "a",
    ],
)
def test_path_is_accepted_exactly_when_the_schema_says_so(path: str) -> None:
    allowed = bool(re.fullmatch(fields.PATH_PATTERN.removeprefix("^").removesuffix("$"), path))
    assert accepts({"code": "1", "files": {path: ""}}) == allowed


@pytest.mark.parametrize("port", ["0", "1", "00", "80", "00080", "65535", "65536", "99999", "100000", "", "x"])
def test_allowlist_pattern_agrees_with_the_parser(port: str) -> None:
    entry = f"example.com:{port}"
    try:
        parse_allowlist([entry])
        parsed = True
    except ValueError:
        parsed = False
    assert bool(re.search(fields.EGRESS_PATTERN, entry)) == parsed


@pytest.mark.parametrize("name", ["python", "Python", "NODE", "javascript", "Bash"])
def test_language_pattern_matches_in_any_case(name: str) -> None:
    assert re.search(fields.LANGUAGE_PATTERN, name)


def test_language_pattern_matches_nothing_else() -> None:
    assert not re.search(fields.LANGUAGE_PATTERN, "pythonx")
