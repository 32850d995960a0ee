# SPDX-License-Identifier: MIT
from __future__ import annotations

import asyncio

import pytest

from agentbox.engine.admission import Admission
from agentbox.errors import OverloadedError


async def test_no_more_runs_work_at_once_than_there_are_places() -> None:
    admission = Admission(3, 100)
    most = 0

    async def run() -> None:
        nonlocal most
        async with admission.place():
            most = max(most, admission.working)
            await asyncio.sleep(0)

    await asyncio.gather(*(run() for _ in range(40)))
    assert most == 3
    assert (admission.working, admission.waiting) == (0, 0)


async def test_a_run_that_finds_the_queue_full_is_told_to_come_back() -> None:
    admission = Admission(1, 1)
    release = asyncio.Event()

    async def hold() -> None:
        async with admission.place():
            await release.wait()

    holders = [asyncio.create_task(hold()) for _ in range(2)]
    while admission.waiting < 1:
        await asyncio.sleep(0)
    with pytest.raises(OverloadedError) as raised:
        async with admission.place():
            pass
    assert raised.value.data["retry_after_seconds"] == 1
    release.set()
    await asyncio.gather(*holders)


async def test_a_run_that_gives_up_waiting_leaves_the_queue() -> None:
    admission = Admission(1, 5)
    async with admission.place():
        waiter = asyncio.create_task(admission.place().__aenter__())
        while admission.waiting < 1:
            await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        assert admission.waiting == 0
    async with admission.place():
        assert admission.working == 1
