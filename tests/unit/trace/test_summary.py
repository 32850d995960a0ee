# SPDX-License-Identifier: MIT
"""Records as lines for people, and as JSON for programs: nothing in them moves a cursor or hides a line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbox.trace.canonical import dumps
from agentbox.trace.exporters import EXPORTERS
from agentbox.trace.record import Entry
from agentbox.trace.storable import storable
from agentbox.trace.summary import summary


def entry(args: dict[str, object], op: str = "fs.read_text") -> Entry:
    fields = {"args": args, "i": 3, "kind": "effect", "op": op}
    return Entry(3, 1.0, "effect", op, args, None, "0" * 64, "0" * 64, fields=fields)


def test_a_denial_that_stands_for_many_says_for_how_many() -> None:
    args = {"target": "192.0.2.1:53", "count": 90}
    told = Entry(3, 1.0, "deny", "net", args, None, "0" * 64, "0" * 64, fields={})
    assert summary(told) == "   3  deny     net             192.0.2.1:53  (90 times)"
    assert summary(entry(args)).endswith("192.0.2.1:53")


@pytest.mark.parametrize(
    ("args", "brief"),
    [
        ({"path": "data/café.txt", "sha256": "0"}, "data/café.txt"),
        ({"host": "a", "url": "https://a/b"}, "https://a/b"),
        ({"argv": ["git", "status"]}, "git status"),
        ({"target": "/etc/passwd", "enforced": True}, "/etc/passwd"),
        ({"argv": [], "target": "/usr/bin/uname"}, "/usr/bin/uname"),
        ({"returncode": 0}, '{"returncode": 0}'),
        ({}, "{}"),
        ({"tool": "x" * 100}, '{"tool": "' + "x" * 50),
        ({"path": "a\nb\x1b[2J\0\x07\x9b"}, "a\\nb\\x1b[2J\\x00\\x07\\x9b"),
        ({"path": "u\u2028x\u202etxt.exe\u200b"}, "u\\u2028x\\u202etxt.exe\\u200b"),
        ({"path": {"b64": "c3Vy/w=="}}, "sur\\xff"),
        ({"path": {"b64": "not base64!"}}, '{"b64": "not base64!"}'),
        ({"path": {"truncated": {"start": "abc\x1b", "bytes": 9}}}, "abc\\x1b…"),
        ({"path": 7}, "7"),
    ],
)
def test_line_shows_the_argument_that_tells_most(args: dict[str, object], brief: str) -> None:
    assert summary(entry(args)) == f"   3  effect   fs.read_text    {brief}"


def test_long_path_is_cut_with_its_length() -> None:
    assert summary(entry({"path": "x" * 1_000_000})).endswith("x… (1000000 characters)")


ANYTHING = st.recursive(
    st.none() | st.integers() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["path", "argv", "target", "other"]), ANYTHING, max_size=2), st.text())
@settings(max_examples=300, deadline=None)
def test_line_is_printable_whatever_a_guest_wrote(args: dict[str, object], op: str) -> None:
    assert summary(entry(args, op)).isprintable()
    assert summary(entry(storable(args), op)).isprintable()


@given(st.dictionaries(st.text(), ANYTHING, max_size=3))
@settings(max_examples=200, deadline=None)
def test_exported_json_has_one_line_an_entry_and_the_same_values(args: dict[str, object]) -> None:
    one = entry(storable(args))
    lines = list(EXPORTERS["jsonl"]([one, one]))
    assert len(lines) == 2
    assert "".join(lines).count("\n") == 2
    assert lines[0][:-1].isprintable() or not any(char in lines[0] for char in "\x1b\x9b\u202e\u2028")
    assert dumps(json.loads(lines[0])["args"]) == dumps(one.args)
