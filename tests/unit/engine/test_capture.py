# SPDX-License-Identifier: MIT
from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbox.engine.capture import Capture, drain


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


async def test_a_pipe_is_read_to_its_end_and_closed() -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    capture = Capture(100)
    draining = asyncio.create_task(drain(read, capture))
    os.write(write, b"one ")
    await asyncio.sleep(0)
    os.write(write, b"two")
    os.close(write)
    await draining
    assert capture.result().data == b"one two"
    with pytest.raises(OSError):
        os.fstat(read)


async def test_chunks_are_handed_on_in_order() -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    seen: list[bytes] = []

    async def on_chunk(chunk: bytes) -> None:
        seen.append(chunk)

    os.write(write, b"abc")
    os.close(write)
    await drain(read, Capture(10), on_chunk)
    assert b"".join(seen) == b"abc"
