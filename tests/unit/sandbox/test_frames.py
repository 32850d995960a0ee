# SPDX-License-Identifier: MIT
"""The frames between a sandbox and the agent in its box."""

from __future__ import annotations

import struct

import pytest

from agentbox.sandbox import frames
from agentbox.sandbox.frames import FrameError, Frames, StartFlag, ToHost


def framed(kind: int, command: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) + 5, kind, command) + payload


def test_frames_are_found_however_they_are_cut() -> None:
    data = framed(68, 7, b"hello") + framed(70, 7, struct.pack(">IQQ", 0, 1, 2)) + framed(74, 7)
    for size in (1, 3, len(data)):
        reader = Frames()
        found = [one for at in range(0, len(data), size) for one in reader.feed(data[at : at + size])]
        assert [kind for kind, _, _ in found] == [ToHost.STDOUT, ToHost.EXIT, ToHost.OVER]
        assert found[0][1:] == (7, b"hello")


@pytest.mark.parametrize(
    "data", [framed(1, 1), framed(99, 1), struct.pack(">IBI", 4, 68, 1), struct.pack(">IBI", 70_000, 68, 1)]
)
def test_what_breaks_the_protocol_is_an_error(data: bytes) -> None:
    with pytest.raises(FrameError):
        list(Frames().feed(data))


@pytest.mark.parametrize("payload", [b"", b"abc"])
def test_a_frame_that_is_too_short_for_its_number_is_an_error(payload: bytes) -> None:
    with pytest.raises(FrameError):
        frames.read_number(payload)
    with pytest.raises(FrameError):
        frames.read_exit(payload)


def test_a_zero_byte_in_a_command_is_refused() -> None:
    with pytest.raises(ValueError, match="zero byte"):
        frames.start(1, ["a\0b"], flags=StartFlag.NONE, user="", directory="", environment={})


def test_a_command_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="more than the agent takes"):
        frames.start(1, ["x" * (1 << 22)], flags=StartFlag.NONE, user="", directory="", environment={})
