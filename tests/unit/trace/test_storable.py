# SPDX-License-Identifier: MIT
"""Whatever a program hands over becomes canonical text of bounded length, with a marker where something is missing."""

from __future__ import annotations

import base64
import hashlib
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbox.trace.canonical import dumps, is_canonical, loads
from agentbox.trace.storable import MAX_ARGS_BYTES, MAX_RESULT_BYTES, args_text, result_text

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters()) | st.integers() | st.binary(), inner, max_size=4)
        | st.frozensets(st.integers(), max_size=3)
    ),
    max_leaves=12,
)


@given(ANYTHING)
@settings(max_examples=400, deadline=None)
def test_anything_becomes_one_line_of_canonical_json(value: object) -> None:
    text = args_text(value).encode("utf-8")
    assert is_canonical(text, loads(text))
    assert b"\n" not in text


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("sur\udcff", {"b64": base64.b64encode(b"sur\xff").decode()}),
        (b"\x00\xff", {"b64": "AP8="}),
        ("\ud800", {"wtf8": base64.b64encode(b"\xed\xa0\x80").decode()}),
        (math.nan, {"number": "nan"}),
        (math.inf, {"number": "inf"}),
        (2**53 + 1, {"number": "0x20000000000001"}),
        (object, {"type": "type"}),
        ({"a": (1, {2})}, {"a": [1, [2]]}),
        ({"\udcff": 1, 2: 3}, {"\\udcff": 1, "2": 3}),
    ],
)
def test_value_that_json_cannot_hold_has_a_marker(value: object, stored: object) -> None:
    assert json.loads(args_text(value)) == stored


def test_number_of_many_thousand_digits_is_stored_without_an_error() -> None:
    assert json.loads(args_text(1 << 100_000))["number"].startswith("0x1000")


def test_long_string_keeps_its_start_its_length_and_its_hash() -> None:
    path = "é" * (1 << 20)
    stored = json.loads(args_text({"path": path, "flags": "r"}))
    data = path.encode()
    assert stored["flags"] == "r"
    assert stored["path"]["truncated"] == {
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "start": path[:1024],
    }


def test_many_short_strings_are_replaced_as_a_whole() -> None:
    value = [f"file{number}" for number in range(100_000)]
    stored = json.loads(args_text(value))
    assert stored == {
        "truncated": {"bytes": len(dumps(value)), "sha256": hashlib.sha256(dumps(value).encode()).hexdigest()}
    }


def test_result_may_be_longer_than_arguments_but_is_bounded() -> None:
    text = "x" * (MAX_RESULT_BYTES - 10)
    assert json.loads(result_text(text)) == text
    assert len(args_text(text)) <= MAX_ARGS_BYTES
    assert "truncated" in json.loads(result_text(text * 2))


def test_value_inside_itself_ends_at_a_depth() -> None:
    circle: list[object] = []
    circle.append(circle)
    assert '"truncated":{"depth":32}' in args_text(circle)
