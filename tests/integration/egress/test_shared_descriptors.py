# SPDX-License-Identifier: MIT
"""Two boxes of one process: one opens connections without end, the other still gets its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import pytest

from agentbox.egress.events import EgressEvent
from agentbox.egress.gateway import Gateway
from agentbox.egress.shares import Budget
from agentbox.egress.upstream import Upstream
from tests.integration.egress.crossings import rules_of
from tests.integration.egress.servers import Servers, echo_server

pytestmark = pytest.mark.linux
Box = Callable[[], "Guest"]


class Guest:
    """A gateway with a listener, and the connections of its guest."""

    def __init__(self, budget: Budget, port: int) -> None:
        self.events: list[EgressEvent] = []
        self.ends: list[asyncio.StreamWriter] = []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.gateway = Gateway(
            rules_of("127.0.0.1"),
            self.events.append,
            Upstream(),
            destination=lambda _: ("127.0.0.1", port),
            share=budget.share(),
        )
        self.gateway.listen([self.listener], {}, {})

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """A connection over which a byte came back, None for one that was refused."""
        try:
            reader, writer = await asyncio.open_connection(*self.listener.getsockname())
        except ConnectionResetError:
            return None
        self.ends.append(writer)
        try:
            writer.write(b"\x01")
            answer = await asyncio.wait_for(reader.read(1), 20)
        except ConnectionResetError:
            answer = b""
        return (reader, writer) if answer == b"\x01" else None

    async def close(self) -> None:
        for writer in self.ends:
            writer.close()
        await self.gateway.close()
        self.listener.close()


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    with Servers() as servers:
        port, _ = servers.serve(echo_server)
        budget = Budget(16, 4)
        made: list[Guest] = []

        def make() -> Guest:
            made.append(Guest(budget, port))
            return made[-1]

        yield make
        for guest in made:
            await guest.close()


async def test_a_greedy_box_is_refused_and_another_has_its_room(box: Box) -> None:
    greedy, modest = box(), box()
    held = [found for _ in range(12) if (found := await greedy.connect())]
    assert len(held) == 2 + 4
    refused = [event for event in greedy.events if not event.allowed]
    assert refused[0].reason == "there are as many connections open as this box may have"
    assert "6" in refused[0].hint
    assert [await modest.connect() is not None for _ in range(3)] == [True] * 3
    held[0][1].close()
    await held[0][1].wait_closed()
    async with asyncio.timeout(20):
        while await greedy.connect() is None:
            await asyncio.sleep(0)


async def test_what_a_box_held_is_there_again_when_it_has_ended(box: Box) -> None:
    first = box()
    while await first.connect():
        pass
    await first.close()
    second = box()
    assert [await second.connect() is not None for _ in range(6)] == [True] * 6
