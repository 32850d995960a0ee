# SPDX-License-Identifier: MIT
"""A command's output on the host: bounded, read by offset, never with a character cut in two."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentbox.sandbox.spool import Spool
from agentbox.sandbox.texts import excerpt, shortened


def spool_of(directory: Path, *pieces: bytes, max_bytes: int = 1 << 20) -> Spool:
    spool = Spool(str(directory), max_bytes)
    for piece in pieces:
        spool.append(piece)
    return spool


def test_what_was_written_is_read_from_any_offset(tmp_path: Path) -> None:
    data = bytes(range(256)) * 1000
    spool = spool_of(tmp_path, data[:10], data[10:70_000], data[70_000:])
    assert spool.total == len(data)
    for offset in (0, 9, 65_536, 200_000):
        assert spool.read(offset, 1000) == (offset, data[offset : offset + 1000])


def test_beyond_its_bound_the_first_half_and_the_end_are_kept(tmp_path: Path) -> None:
    data = b"".join(b"%08d" % number for number in range(100_000))
    spool = spool_of(tmp_path, *(data[at : at + 60_000] for at in range(0, len(data), 60_000)), max_bytes=200_000)
    first, last = spool.lost
    assert spool.read(0, 1 << 20) == (0, data[:first])
    assert spool.read(first, 1 << 20) == (last, data[last:])
    assert spool.read(last + 5, 10) == (last + 5, data[last + 5 : last + 15])
    assert len(data) - last + first == 200_000


def test_a_long_spool_leaves_no_name_behind(tmp_path: Path) -> None:
    spool = spool_of(tmp_path, b"x" * 200_000)
    assert list(tmp_path.iterdir()) == []
    spool.close()
    assert spool.read(0, 10) == (0, b"")


@pytest.mark.parametrize("text", ["€" * 10, "a€b", "\U0001f600\U0001f600", "é"])
def test_text_that_comes_byte_by_byte_has_no_broken_character(tmp_path: Path, text: str) -> None:
    spool, begin, seen = Spool(str(tmp_path)), 0, ""
    for byte in text.encode():
        spool.append(bytes([byte]))
        found = excerpt(spool, begin, final=False)
        seen, begin = seen + found.text, found.end
    assert seen == text


def test_an_unfinished_character_is_shown_when_nothing_more_will_come(tmp_path: Path) -> None:
    spool = spool_of(tmp_path, b"ab\xe2\x82")
    assert excerpt(spool, 0, final=False).text == "ab"
    assert excerpt(spool, 0, final=True).text == "ab\ufffd"


@pytest.mark.parametrize("size", [0, 1, 29_999, 30_000])
def test_text_up_to_the_limit_is_verbatim(tmp_path: Path, size: int) -> None:
    text = "x" * size
    assert excerpt(spool_of(tmp_path, text.encode()), 0, final=True).text == text


@pytest.mark.parametrize("text", ["x" * 30_001, "ab€" * 700_000, "€" * 30_001])
def test_longer_text_keeps_both_ends_and_says_how_much_is_left_out(tmp_path: Path, text: str) -> None:
    data = text.encode()
    pieces = [data[at : at + 65_536] for at in range(0, len(data), 65_536)]
    found = excerpt(spool_of(tmp_path, *pieces, max_bytes=8 << 20), 0, final=True)
    left_out = len(text) - 30_000
    assert found.text == f"{text[:15_000]}\n... [{left_out} characters truncated] ...\n{text[-15_000:]}"
    assert found.text == shortened(text)
    assert found.characters == len(text)


def test_what_is_not_kept_counts_as_left_out(tmp_path: Path) -> None:
    spool = spool_of(tmp_path, *[b"y\n" * 30_000] * 20, max_bytes=200_000)
    found = excerpt(spool, 0, final=True)
    assert found.characters == 1_200_000
    assert found.text.endswith("y\n" * 7_500)
    assert "[1170000 characters truncated]" in found.text
