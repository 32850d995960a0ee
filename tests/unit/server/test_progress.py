# SPDX-License-Identifier: MIT
"""What takes long says how far it is, and goes on when nobody listens any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from agentbox.errors import WorkspaceError
from agentbox.server.sandboxes import progress
from agentbox.server.sandboxes.progress import Told
from agentbox.server.supervised import DISCONNECT, ClientGoneError, Occasion

EVENTS = [(b"accept", b"text/event-stream")]


def request(gone: Occasion | None = None) -> Request:
    state = {DISCONNECT: gone or Occasion(), "request_id": "r" * 16}
    return Request({"type": "http", "method": "POST", "headers": EVENTS, "state": state})


async def sent(work: progress.Work, on_progress: asyncio.Event | None = None) -> list[str]:
    asked, frames = request(), []

    async def send(message: Any) -> None:
        if body := message.get("body"):
            frames.append(body.decode())
            if on_progress is not None and body.startswith(b"event: progress"):
                on_progress.set()

    answer = await progress.told(asked, work, 201, Occasion())
    await answer(asked.scope, asked.receive, send)
    return frames


def test_bytes_are_told_before_the_answer() -> None:
    async def run() -> list[str]:
        heard = asyncio.Event()

        async def work(told: Told) -> dict[str, Any]:
            told(5)
            await heard.wait()
            return {"a": 1}

        return await sent(work, heard)

    assert asyncio.run(run()) == ['event: progress\ndata: {"bytes":5}\n\n', 'event: done\ndata: {"a":1}\n\n']


def test_what_goes_wrong_at_once_has_a_status_and_later_an_event() -> None:
    async def at_once(told: Told) -> dict[str, Any]:
        raise WorkspaceError("no")

    with pytest.raises(WorkspaceError):
        asyncio.run(sent(at_once))

    async def run() -> list[str]:
        heard = asyncio.Event()

        async def later(told: Told) -> dict[str, Any]:
            told(1)
            await heard.wait()
            raise WorkspaceError("no")

        return await sent(later, heard)

    last = asyncio.run(run())[-1]
    assert last.startswith("event: error\n")
    assert '"status":' in last


def test_work_is_done_although_the_client_is_gone() -> None:
    async def run() -> bool:
        gone, done, may_end = Occasion(), asyncio.Event(), asyncio.Event()

        async def work(told: Told) -> dict[str, Any]:
            await may_end.wait()
            done.set()
            return {}

        asked = request(gone)
        answer = await progress.told(asked, work, 200, Occasion())
        gone.set()

        async def send(message: Any) -> None:
            del message

        with pytest.raises(ClientGoneError):
            await answer(asked.scope, asked.receive, send)
        may_end.set()
        return await asyncio.wait_for(done.wait(), 60)

    assert asyncio.run(run())
