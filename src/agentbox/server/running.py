# SPDX-License-Identifier: MIT
"""POST /v1/run: a body becomes a request, a request a run, a run its answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from starlette.requests import Request
from starlette.types import ASGIApp

from agentbox.config import Settings
from agentbox.errors import NotFoundError
from agentbox.models import RunRequest, RunResult
from agentbox.server import problems, schemas
from agentbox.server.body import BodyBudget, BodyLease, read_body
from agentbox.server.routing import JsonAnswer
from agentbox.server.stream import EventStream, wants_stream
from agentbox.server.supervised import DISCONNECT, Occasion, supervised
from agentbox.server.validation import parse_run

if TYPE_CHECKING:
    from agentbox.engine.admission import OnQueued
    from agentbox.engine.supervisor import OutputSink

# Above this size JSON is read and written in a thread, so that other requests go on.
INLINE_BYTES = 256 << 10


class Places(Protocol):
    """What the API says about runs at work and runs that wait."""

    working: int
    waiting: int

    def check(self, key: str) -> None:
        """Raise OverloadedError where a run of this key would be refused now."""


class Runs(Protocol):
    """What executes requests."""

    @property
    def admission(self) -> Places:
        """The places for runs, and the queue in front of them."""

    async def run(
        self, request: RunRequest, on_output: OutputSink | None = None, on_queued: OnQueued | None = None
    ) -> RunResult:
        """Execute one request; cancelling ends it."""


class RunEndpoint:
    """Answers POST /v1/run. `shared`: more than one key may call."""

    def __init__(self, runner: Runs, settings: Settings, stopping: Occasion, *, shared: bool) -> None:
        self._runner = runner
        self._settings = settings
        self._stopping = stopping
        self._budget = BodyBudget(settings.max_body_bytes, shared=shared)

    async def __call__(self, request: Request) -> ASGIApp:
        """The answer to one request; a stream is only begun when it is called."""
        owner = request.state.owner
        # Before the body is read: what will be refused must cost little.
        self._runner.admission.check(owner)
        with self._budget.lease(owner) as lease:
            wanted = await self._wanted(request, lease, owner)
            if wants_stream(request.headers.get("accept", "")):
                return self._stream(wanted, lease.handed_over())
            return await self._answer(wanted, request)

    async def _wanted(self, request: Request, lease: BodyLease, owner: str) -> RunRequest:
        raw = await read_body(request, lease, self._settings.request_read_timeout_seconds)
        content_type = request.headers.get("content-type", "")
        if len(raw) <= INLINE_BYTES:
            return schemas.to_request(parse_run(raw, content_type), owner)
        return await asyncio.to_thread(lambda: schemas.to_request(parse_run(raw, content_type), owner))

    def _stream(self, wanted: RunRequest, lease: BodyLease) -> EventStream:
        most = self._settings.max_output_bytes
        kept = min(wanted.limits.max_output_bytes or most, most)
        return EventStream(
            lambda on_output, on_queued: self._runner.run(wanted, on_output, on_queued), self._stopping, kept, lease
        )

    async def _answer(self, wanted: RunRequest, request: Request) -> ASGIApp:
        gone = request.scope["state"][DISCONNECT]
        try:
            result = await supervised(self._runner.run(wanted), gone, self._stopping)
        except NotFoundError as error:
            raise problems.from_error(error, on_run=True) from error
        if schemas.timed_out(result):
            raise problems.timed_out(result)
        size = len(result.stdout.data) + len(result.stderr.data) + sum(map(len, result.files.values()))
        body = _json_bytes(result) if size <= INLINE_BYTES else await asyncio.to_thread(_json_bytes, result)
        return JsonAnswer(body)


def _json_bytes(result: RunResult) -> bytes:
    return problems.encode(schemas.result_body(result))
