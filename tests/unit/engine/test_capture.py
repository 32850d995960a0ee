# SPDX-License-Identifier: MIT
from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbox.engine.capture import Capture, PipeFollower, SinkFollower


@given(st.lists(st.binary(max_size=70), max_size=30), st.integers(min_value=1, max_value=200))
def test_a_capture_is_everything_or_head_half_and_tail_half(chunks: list[bytes], cap: int) -> None:
    capture = Capture(cap)
    for chunk in chunks:
        capture.feed(chunk)
    whole = b"".join(chunks)
    kept = capture.result()
    assert kept.total_bytes == len(whole)
    assert kept.truncated == (len(whole) > cap)
    if len(whole) <= cap:
        assert kept.data == whole
    else:
        head = cap - cap // 2
        assert kept.data == whole[:head] + whole[len(whole) - cap // 2 :]


def test_a_flood_is_held_in_memory_of_the_size_of_the_cap() -> None:
    capture = Capture(1 << 20)
    block = os.urandom(1 << 16)
    for _ in range(2000):
        capture.feed(block)
    assert len(capture._head) + len(capture._tail) < 4 << 20
    assert capture.result().total_bytes == 2000 << 16


def _pipe() -> tuple[int, int]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    return read, write


async def test_a_pipe_is_followed_while_it_is_written_and_closed_at_the_end() -> None:
    read, write = _pipe()
    capture = Capture(100)
    told = asyncio.Event()
    follower = PipeFollower(read, capture, lambda _: told.set())
    follower.follow()
    os.write(write, b"one ")
    await told.wait()
    assert capture.result().data == b"one "
    os.write(write, b"two")
    os.close(write)
    await follower.finish()
    follower.close()
    assert capture.result().data == b"one two"
    with pytest.raises(OSError):
        os.fstat(read)


async def test_what_is_in_a_pipe_is_taken_although_a_dying_writer_holds_it_open() -> None:
    read, write = _pipe()
    capture = Capture(1 << 20)
    follower = PipeFollower(read, capture, lambda _: None)
    os.write(write, b"x" * 60000)
    await follower.finish()
    follower.close()
    os.close(write)
    assert capture.result().total_bytes == 60000


async def test_a_pipe_that_nobody_followed_is_read_at_the_end() -> None:
    read, write = _pipe()
    capture = Capture(100)
    follower = PipeFollower(read, capture, lambda _: None)
    os.write(write, b"said at once")
    os.close(write)
    await follower.finish()
    follower.follow()
    follower.close()
    assert capture.result().data == b"said at once"


async def test_a_follower_that_is_closed_early_gives_its_descriptor_back_once() -> None:
    read, write = _pipe()
    follower = PipeFollower(read, Capture(10), lambda _: None)
    follower.close()
    again = os.open(os.devnull, os.O_RDONLY)
    follower.close()
    os.fstat(again)
    os.close(again)
    os.close(write)


async def test_chunks_are_handed_on_in_order() -> None:
    read, write = _pipe()
    seen: list[bytes] = []

    async def sink(chunk: bytes) -> None:
        seen.append(chunk)

    os.write(write, b"abc")
    os.close(write)
    follower = SinkFollower(read, Capture(10), lambda _: None, sink)
    await follower.finish()
    assert b"".join(seen) == b"abc"
    with pytest.raises(OSError):
        os.fstat(read)
