# SPDX-License-Identifier: MIT
"""Clients of the HTTP API, synchronous and asynchronous; what they share is in wire.py.

Connection failures are httpx's own exceptions; an answer of 400 or more is an AgentboxHTTPError (a RuntimeError).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import Any, Unpack

import httpx

from agentbox.sdk import wire
from agentbox.sdk.errors import AgentboxHTTPError
from agentbox.sdk.wire import Event, NewFields, RunFields, RunResponse

__all__ = ["AgentboxClient", "AgentboxHTTPError", "AsyncAgentboxClient", "Event", "RunResponse"]

DEFAULT_URL = "http://localhost:8080"


def _timeout(seconds: float | None) -> httpx.Timeout:
    """`seconds` for every step; None waits longer than the longest run."""
    if seconds is not None:
        return httpx.Timeout(seconds)
    return httpx.Timeout(wire.READ_TIMEOUT_SECONDS, connect=wire.CONNECT_TIMEOUT_SECONDS)


class AgentboxClient:
    """A connection to one server. `timeout` is in seconds; by default it exceeds the longest run that is possible.

    A run that finds the server busy (429) is sent again up to `retries` times, each time after as many seconds as the
    server said; by default it is not.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        api_key: str | None = None,
        timeout: float | None = None,
        retries: int = 0,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.retries = retries
        self._client = httpx.Client(base_url=self.base_url, headers=wire.headers(api_key), timeout=_timeout(timeout))

    def health(self) -> dict[str, Any]:
        """`status`, `version` and `backend` of the server; for a caller with a key also `runs`, at work and waiting."""
        found: dict[str, Any] = wire.checked(self._client.get("/health"))
        return found

    def run(
        self,
        code: str,
        language: str = "python",
        timeout_seconds: int | None = None,
        snapshot: bool = False,
        snapshot_id: str | None = None,
        memory_mb: int | None = None,
        egress_allowlist: Sequence[str] | None = None,
        **more: Unpack[NewFields],
    ) -> RunResponse:
        """Execute code. `stdin` and the values of `files` are text or bytes; limits are in the units of their names.

        Raises AgentboxHTTPError; after a timeout (status 408) it holds the partial `result`.
        """
        payload = wire.run_payload(
            code, language, timeout_seconds, snapshot, snapshot_id, memory_mb, egress_allowlist, **more
        )
        patience = wire.Patience(self.retries)
        while True:
            try:
                return RunResponse(wire.checked(self._client.post(wire.RUN_PATH, json=payload)))
            except AgentboxHTTPError as error:
                time.sleep(patience.seconds(error))

    def stream(self, code: str, language: str = "python", **fields: Unpack[RunFields]) -> Iterator[Event]:
        """Execute code and yield output as it happens, then one event of kind `result`, also after a timeout.

        Closing the iterator early ends the run. Raises AgentboxHTTPError, and httpx.RemoteProtocolError for a stream
        that is cut before its result.
        """
        payload = wire.run_payload(code, language, **fields)
        patience = wire.Patience(self.retries)
        while True:
            try:
                yield from self._events(payload)
                return
            except AgentboxHTTPError as error:
                # A server that is busy says so before any output: nothing is given out twice.
                time.sleep(patience.seconds(error))

    def _events(self, payload: dict[str, Any]) -> Iterator[Event]:
        parser = wire.EventParser()
        with self._client.stream("POST", wire.RUN_PATH, json=payload, headers=wire.EVENT_STREAM) as answer:
            if answer.status_code >= 400:
                answer.read()
                wire.checked(answer)
            for line in answer.iter_lines():
                yield from parser.feed(line)
        if not parser.ended:
            raise httpx.RemoteProtocolError("the stream ended before its result")

    def snapshots(self) -> list[dict[str, Any]]:
        """This key's snapshots."""
        found: list[dict[str, Any]] = wire.checked(self._client.get(wire.SNAPSHOTS_PATH))["snapshots"]
        return found

    def get_snapshot(self, snapshot_id: str) -> dict[str, Any]:
        """What is known about one snapshot."""
        found: dict[str, Any] = wire.checked(self._client.get(wire.snapshot_path(snapshot_id)))
        return found

    def delete_snapshot(self, snapshot_id: str) -> None:
        """Remove one snapshot."""
        wire.checked(self._client.delete(wire.snapshot_path(snapshot_id)))

    def trace(self, run_id: str) -> Iterator[bytes]:
        """The trace of a run that has ended, piece by piece; written to a file, `agentbox verify` takes it."""
        with self._client.stream("GET", wire.trace_path(run_id)) as answer:
            if answer.status_code >= 400:
                answer.read()
                wire.refused(answer)
            yield from answer.iter_bytes()

    def public_key(self) -> str:
        """The key that verifies the server's traces, as PEM text for `agentbox verify --key`."""
        answer = self._client.get(wire.KEY_PATH)
        wire.refused(answer)
        return answer.text

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> AgentboxClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncAgentboxClient:
    """AgentboxClient for asyncio: the same arguments, results and errors."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        api_key: str | None = None,
        timeout: float | None = None,
        retries: int = 0,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.retries = retries
        self._client = httpx.AsyncClient(
            base_url=self.base_url, headers=wire.headers(api_key), timeout=_timeout(timeout)
        )

    async def health(self) -> dict[str, Any]:
        """As AgentboxClient.health."""
        found: dict[str, Any] = wire.checked(await self._client.get("/health"))
        return found

    async def run(self, code: str, language: str = "python", **fields: Unpack[RunFields]) -> RunResponse:
        """As AgentboxClient.run, with keyword arguments. Cancelling ends the run."""
        payload = wire.run_payload(code, language, **fields)
        patience = wire.Patience(self.retries)
        while True:
            try:
                return RunResponse(wire.checked(await self._client.post(wire.RUN_PATH, json=payload)))
            except AgentboxHTTPError as error:
                await asyncio.sleep(patience.seconds(error))

    async def stream(self, code: str, language: str = "python", **fields: Unpack[RunFields]) -> AsyncIterator[Event]:
        """As AgentboxClient.stream."""
        payload = wire.run_payload(code, language, **fields)
        patience = wire.Patience(self.retries)
        while True:
            try:
                # Closed with the outer iterator, and not some time later.
                async with contextlib.aclosing(self._events(payload)) as events:
                    async for event in events:
                        yield event
                return
            except AgentboxHTTPError as error:
                await asyncio.sleep(patience.seconds(error))

    async def _events(self, payload: dict[str, Any]) -> AsyncGenerator[Event, None]:
        parser = wire.EventParser()
        async with self._client.stream("POST", wire.RUN_PATH, json=payload, headers=wire.EVENT_STREAM) as answer:
            if answer.status_code >= 400:
                await answer.aread()
                wire.checked(answer)
            async for line in answer.aiter_lines():
                for event in parser.feed(line):
                    yield event
        if not parser.ended:
            raise httpx.RemoteProtocolError("the stream ended before its result")

    async def snapshots(self) -> list[dict[str, Any]]:
        """This key's snapshots."""
        found: list[dict[str, Any]] = wire.checked(await self._client.get(wire.SNAPSHOTS_PATH))["snapshots"]
        return found

    async def get_snapshot(self, snapshot_id: str) -> dict[str, Any]:
        """What is known about one snapshot."""
        found: dict[str, Any] = wire.checked(await self._client.get(wire.snapshot_path(snapshot_id)))
        return found

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Remove one snapshot."""
        wire.checked(await self._client.delete(wire.snapshot_path(snapshot_id)))

    async def trace(self, run_id: str) -> AsyncIterator[bytes]:
        """As AgentboxClient.trace."""
        async with self._client.stream("GET", wire.trace_path(run_id)) as answer:
            if answer.status_code >= 400:
                await answer.aread()
                wire.refused(answer)
            async for piece in answer.aiter_bytes():
                yield piece

    async def public_key(self) -> str:
        """As AgentboxClient.public_key."""
        answer = await self._client.get(wire.KEY_PATH)
        wire.refused(answer)
        return answer.text

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def __aenter__(self) -> AsyncAgentboxClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
