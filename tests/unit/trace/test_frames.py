# SPDX-License-Identifier: MIT
"""Frames: what the vectors cannot hold (sizes, types of Python, replaced modules)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbox.trace.frames import MAX_FRAME_BYTES, FrameError, FrameParser, answer, encode

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_what_is_encoded_is_parsed_again_however_the_stream_is_cut(message: dict[str, object], step: int) -> None:
    frame = encode(message)
    parser = FrameParser()
    found = [m for at in range(0, len(frame), step) for m in parser.feed(frame[at : at + step])]
    assert found == [message]


@given(st.lists(st.binary(max_size=40), max_size=5))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_messages_or_a_frame_error(chunks: list[bytes]) -> None:
    parser = FrameParser()
    reason = ""
    try:
        for chunk in chunks:
            assert all(isinstance(message, dict) for message in parser.feed(chunk))
    except FrameError as error:
        reason = error.reason
    assert reason in {"", "length", "encoding", "json", "object", "duplicate", "number", "depth"}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({1, 2}, "type"),
        (b"bytes", "type"),
        (float("nan"), "number"),
        (float("inf"), "number"),
        ("x" * MAX_FRAME_BYTES, "length"),
    ],
)
def test_message_that_cannot_be_sent_is_refused_by_the_sender(value: object, reason: str) -> None:
    with pytest.raises(FrameError) as caught:
        encode({"id": 1, "args": {"value": value}})
    assert caught.value.reason == reason


def test_value_inside_itself_is_refused_by_the_sender() -> None:
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(FrameError) as caught:
        encode({"args": circle})
    assert caught.value.reason == "depth"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "depth"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "depth"),
        (b'{"a":' + b"9" * 900_000 + b"}", "number"),
    ],
)
def test_costly_frame_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(FrameError) as caught:
        list(FrameParser().feed(len(body).to_bytes(4, "little") + body))
    assert caught.value.reason == reason


def test_parser_keeps_no_more_than_one_frame() -> None:
    parser = FrameParser()
    frame = encode({"args": {"text": "x" * 100_000}})
    for _ in range(50):
        assert len(list(parser.feed(frame + frame[:1000]))) == 1
        assert len(list(parser.feed(frame[1000:]))) == 1
        assert parser.is_between_frames


def test_answers_are_frames() -> None:
    stream = answer(7) + answer(8, ok=False, error="policy denies write /etc/x") + answer(9, result={"bytes": 3})
    assert list(FrameParser().feed(stream)) == [
        {"id": 7, "ok": True},
        {"id": 8, "ok": False, "error": "policy denies write /etc/x"},
        {"id": 9, "ok": True, "result": {"bytes": 3}},
    ]


def test_encoder_does_not_use_what_a_program_put_in_the_place_of_json() -> None:
    code = (
        "import json, builtins, sys\n"
        "from agentbox.trace.frames import encode\n"
        "write = sys.stdout.buffer.write\n"
        "bad = lambda *a, **k: '{}'\n"
        "json.dumps = json.JSONEncoder.encode = json.JSONEncoder.iterencode = bad\n"
        "json.encoder.encode_basestring_ascii = json.encoder.c_make_encoder = bad\n"
        "builtins.sorted = builtins.str = builtins.repr = bad\n"
        "write(encode({'id': 1, 'path': 'x\\n'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert list(FrameParser().feed(done.stdout)) == [{"id": 1, "path": "x\n"}], done.stderr


def test_encoded_bytes_are_plain_json_for_everybody() -> None:
    assert json.loads(encode({"path": "sur\udcff é"})[4:]) == {"path": "sur\udcff é"}
    assert encode({"path": "é\u2028\x1b\n"})[4:].isascii()


@pytest.mark.parametrize("module", ["frames", "canonical"])
def test_broken_json_has_its_word_before_anything_else_has_imported_json(module: str) -> None:
    read = {
        "frames": "from agentbox.trace.frames import message_of as read, FrameError as Wrong",
        "canonical": "from agentbox.trace.canonical import loads as read, NotCanonicalError as Wrong",
    }[module]
    text = f'{read}\ntry:\n    read(b\'{{"a":"\')\nexcept Wrong as error:\n    print(error.reason)'
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "json\n"
