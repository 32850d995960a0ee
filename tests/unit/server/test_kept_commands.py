# SPDX-License-Identifier: MIT
"""Which commands of a sandbox are known, and when they are written down."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from starlette.requests import Request

from agentbox.isolation.durable import PipeStream
from agentbox.sandbox.command import Command
from agentbox.sandbox.link import AgentLink
from agentbox.server.problems import Problem
from agentbox.server.sandboxes.journal import Journal
from agentbox.server.sandboxes.kept_commands import KEPT_COMMANDS, KeptCommand, KeptCommands
from agentbox.server.sandboxes.reading import Query
from agentbox.server.sandboxes.routes_files import user_of

BOX = "sbx-0123456789abcdef"


class Bench:
    """Commands of one sandbox, over a pipe that nobody reads."""

    def __init__(self, place: Path) -> None:
        self.journal = Journal(place)
        self.known = KeptCommands(BOX, str(place), 1000, self.journal)
        self.stream = PipeStream(*os.pipe())
        self.link = AgentLink(self.stream)

    def begin(self) -> KeptCommand:
        """A command that runs."""
        command = Command(["true"], self.known.new_spool(), None)
        command.begin(self.link)
        self.known.began(command)
        return self.known.of(command)

    def end(self, kept: KeptCommand) -> str:
        """It ends; its id."""
        assert kept.command is not None
        kept.command.lose("it was ended")
        return kept.id

    def written(self) -> list[str]:
        """Ids of those that the next keeper would know."""
        return [facts["id"] for _, facts in self.journal.commands(BOX)]

    async def close(self) -> None:
        """Nothing is left."""
        await self.stream.close()
        await self.known.settle()
        self.journal.close()


def test_what_has_just_ended_is_known_beside_any_number_that_run(tmp_path: Path) -> None:
    async def work() -> None:
        bench = Bench(tmp_path)
        running = [bench.begin().id for _ in range(2 * KEPT_COMMANDS)]
        ended = [bench.end(bench.begin()) for _ in range(40)]
        bench.begin()
        assert [bench.known.get(one).id for one in running] == running
        assert [bench.known.get(one).id for one in ended[-8:]] == ended[-8:]
        assert len(bench.known.list()) < 2 * KEPT_COMMANDS + 40
        await bench.close()

    asyncio.run(work())


def test_what_waits_for_an_end_is_answered_first_and_written_down_in_the_next_turn(tmp_path: Path) -> None:
    async def work() -> None:
        bench = Bench(tmp_path)
        kept = bench.begin()
        with bench.known.answering(kept):
            kept.stdout.append(b"hello")
            bench.end(kept)
            await kept.wait_for_answer(None)
            assert (kept.answer()["exit_code"], kept.stdout.held, bench.written()) == (137, b"hello", [])
        await asyncio.sleep(0)
        assert (kept.stdout.held, bench.written()) == (None, [kept.id])
        await bench.close()

    asyncio.run(work())


def test_whoever_else_asks_hears_of_what_is_written_down(tmp_path: Path) -> None:
    async def work() -> None:
        bench = Bench(tmp_path)
        kept = bench.begin()
        kept.stdout.append(b"hello")
        assert kept.body()["stdout_bytes"] == 5
        assert (kept.stdout.held, bench.written()) == (None, [kept.id])
        await bench.close()

    asyncio.run(work())


def test_a_word_in_a_query_is_one_of_those_that_are_known_or_is_left_out() -> None:
    def asked(query: bytes) -> str:
        return user_of(Query(Request({"type": "http", "query_string": query})))

    assert [asked(b"user=root"), asked(b"")] == ["root", ""]
    for query in (b"user=", b"user=nobody"):
        with pytest.raises(Problem) as caught:
            asked(query)
        assert caught.value.status == 422
