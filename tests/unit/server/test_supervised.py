# SPDX-License-Identifier: MIT
from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentbox.server.problems import Problem
from agentbox.server.supervised import ClientGoneError, Occasion, supervised


class Run:
    """A run that lasts until it is told to end; `torn_down` says whether its end was awaited."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.begun = False
        self.torn_down = False

    async def go(self) -> Any:
        self.begun = True
        try:
            await self.release.wait()
            return "result"
        finally:
            await asyncio.sleep(0)
            self.torn_down = True


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_result_comes_back_and_nobody_is_called_afterwards() -> None:
    run, gone, stopping = Run(), Occasion(), Occasion()
    run.release.set()
    assert await supervised(run.go(), gone, stopping) == "result"
    gone.set()
    stopping.set()
    await settle()


@pytest.mark.parametrize(("which", "error"), [("gone", ClientGoneError), ("stopping", Problem)])
async def test_run_is_over_before_its_end_is_told(which: str, error: type[Exception]) -> None:
    run, occasions = Run(), {"gone": Occasion(), "stopping": Occasion()}
    serving = asyncio.create_task(supervised(run.go(), **occasions))
    await settle()
    occasions[which].set()
    with pytest.raises(error):
        await serving
    assert run.torn_down
    assert serving.cancelling() == 0


async def test_run_whose_client_has_gone_already_never_begins() -> None:
    run, gone = Run(), Occasion()
    gone.set()
    with pytest.raises(ClientGoneError):
        await supervised(run.go(), gone, Occasion())
    assert not run.begun


async def test_cancellation_by_others_stays_one() -> None:
    run = Run()
    serving = asyncio.create_task(supervised(run.go(), Occasion(), Occasion()))
    await settle()
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert run.torn_down


async def test_second_reason_to_end_does_not_cut_the_teardown() -> None:
    run, gone, stopping = Run(), Occasion(), Occasion()
    serving = asyncio.create_task(supervised(run.go(), gone, stopping))
    await settle()
    gone.set()
    stopping.set()
    with pytest.raises(ClientGoneError):
        await serving
    assert run.torn_down
