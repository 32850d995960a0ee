# SPDX-License-Identifier: MIT
"""What a run leaves for a thread is handed on a moment later, in order, and none of it is lost."""

from __future__ import annotations

import asyncio

from agentbox.engine.unhurried import Unhurried


def test_what_is_given_on_a_loop_is_handed_on_later_in_its_order() -> None:
    taken: list[int] = []

    async def give() -> None:
        done = asyncio.Event()

        def take(descriptor: int) -> None:
            taken.append(descriptor)
            if len(taken) == 3:
                done.set()

        unhurried = Unhurried(take)
        for descriptor in (1, 2, 3):
            unhurried.take(descriptor)
        assert taken == []
        await done.wait()

    asyncio.run(give())
    assert taken == [1, 2, 3]


def test_a_close_hands_on_what_waits_and_what_comes_later_at_once() -> None:
    taken: list[int] = []

    async def give() -> None:
        unhurried = Unhurried(taken.append)
        unhurried.take(1)
        unhurried.close()
        assert taken == [1]
        unhurried.take(2)
        assert taken == [1, 2]

    asyncio.run(give())
    assert taken == [1, 2]


def test_without_a_loop_it_is_handed_on_at_once() -> None:
    taken: list[int] = []
    Unhurried(taken.append).take(1)
    assert taken == [1]
