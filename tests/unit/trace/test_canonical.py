# SPDX-License-Identifier: MIT
"""Canonical text: what the shared vectors cannot say because JSON has no such value."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbox.trace.canonical import NotCanonicalError, dumps, is_canonical, loads, number

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(JSON)
@settings(max_examples=300, deadline=None)
def test_canonical_text_is_json_of_the_same_value_and_its_own_canonical_form(value: object) -> None:
    text = dumps(value)
    assert loads(text.encode()) == value
    assert is_canonical(text.encode(), loads(text.encode()))


@given(st.binary(min_size=8, max_size=8))
@settings(max_examples=1000, deadline=None)
def test_every_double_is_written_so_that_it_is_read_back(data: bytes) -> None:
    (value,) = struct.unpack("<d", data)
    if math.isfinite(value):
        assert float(number(value)) == value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "number"),
        (-math.inf, "number"),
        (2**53 + 1, "number"),
        (10**400, "number"),
        ("\ud800", "surrogate"),
        ({"\udc00": 1}, "surrogate"),
        ({1: 2}, "key"),
        ({None: 2, "a": 1}, "key"),
        (b"bytes", "type"),
        ({1, 2}, "type"),
        (type("Text", (str,), {})("x"), "type"),
    ],
)
def test_value_without_a_canonical_form_is_refused(value: object, reason: str) -> None:
    for holder in (value, [value], {"a": {"b": value}}):
        with pytest.raises(NotCanonicalError) as caught:
            dumps(holder)
        assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("value", "text"), [(2**53, "9007199254740992"), (10**21, "1e+21"), (-(2**70), "-1.1805916207174113e+21")]
)
def test_integer_that_is_a_double_is_written_as_that_double(value: int, text: str) -> None:
    assert dumps(value) == text


@given(st.binary(max_size=60))
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    try:
        value = loads(data)
    except NotCanonicalError:
        return
    assert is_canonical(data, value) in (True, False)


@pytest.mark.parametrize("text", [b"[" * 200_000, b'{"a":' * 100_000, b"9" * 100_000, b"-" + b"9" * 5000, b"\xff", b""])
def test_hostile_text_is_refused(text: bytes) -> None:
    with pytest.raises(NotCanonicalError):
        dumps(loads(text))
