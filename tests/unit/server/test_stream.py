# SPDX-License-Identifier: MIT
from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbox.server.stream import Utf8Pieces, wants_stream


def pieces_of(chunks: list[bytes]) -> list[str | bytes]:
    splitter = Utf8Pieces()
    found = [piece for chunk in chunks for piece in splitter.feed(chunk)]
    return found + splitter.feed(b"", final=True)


@pytest.mark.parametrize("character", ["é", "€", "𝄞"])
def test_character_cut_between_chunks_arrives_whole(character: str) -> None:
    encoded = f"a{character}b".encode()
    for cut in range(len(encoded)):
        pieces = pieces_of([encoded[:cut], encoded[cut:]])
        assert all(isinstance(piece, str) for piece in pieces)
        assert "".join(map(str, pieces)) == f"a{character}b"


def test_character_that_arrives_byte_by_byte_is_one_piece() -> None:
    assert pieces_of([bytes([byte]) for byte in "𝄞".encode()]) == ["𝄞"]


def test_bytes_that_are_not_text_stay_bytes() -> None:
    assert pieces_of([b"ok\xff\xfe"]) == ["ok", b"\xff\xfe"]


def test_text_after_bytes_is_text_again() -> None:
    assert pieces_of([b"\xff", "é".encode()]) == [b"\xff", "é"]


def test_character_that_never_ends_comes_as_bytes() -> None:
    assert pieces_of([b"a\xe2\x82"]) == ["a", b"\xe2\x82"]


@given(st.lists(st.binary(max_size=12), max_size=12))
def test_no_byte_is_lost_or_changed(chunks: list[bytes]) -> None:
    back = b"".join(piece.encode() if isinstance(piece, str) else piece for piece in pieces_of(chunks))
    assert back == b"".join(chunks)


@given(st.text(max_size=40), st.lists(st.integers(0, 160), max_size=10))
def test_text_is_never_shown_as_bytes_however_it_is_cut(text: str, cuts: list[int]) -> None:
    data = text.encode()
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[a:b] for a, b in itertools.pairwise(places)]
    assert all(isinstance(piece, str) for piece in pieces_of(chunks))


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("text/event-stream", True),
        ("application/json, text/event-stream;q=0.5", True),
        ("TEXT/EVENT-STREAM", True),
        ("*/*", False),
        ("", False),
        ("application/json", False),
    ],
)
def test_stream_is_sent_only_when_asked_for(accept: str, wanted: bool) -> None:
    assert wants_stream(accept) is wanted
