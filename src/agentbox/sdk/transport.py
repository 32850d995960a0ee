# SPDX-License-Identifier: MIT
"""Requests to one server over kept connections.

A kept connection may be closed by the server at the moment when the next request is on its way. A request that changes
nothing, or the same however often it is made, is then made once more; any other is an error, never a second time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from agentbox.sdk import http1, wire
from agentbox.sdk.errors import LostConnectionError
from agentbox.sdk.http1 import Answer, Body, Connection, Origin

# Servers keep a connection for longer: ours for 15 s.
_IDLE_SECONDS = 5.0
_MOST_IDLE = 16
_AGAIN = frozenset({"GET", "HEAD", "PUT"})
DEFAULT_TIMEOUT_SECONDS = 120.0


class Transport:
    """Requests to one server; any number at once, each on a connection of its own. For one event loop."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """Raises ValueError for what is no http or https URL, or a key that no header can carry."""
        self.url = url.rstrip("/")
        self._origin = Origin.of(url)
        self._idle: list[Connection] = []
        lines = [f"Host: {self._origin.authority}", "User-Agent: agentbox"]
        for name, value in wire.headers(api_key).items():
            if not value.isascii() or not value.isprintable():
                raise ValueError("the API key holds a character that no key can have")
            lines.append(f"{name}: {value}")
        self._lines = "\r\n".join(lines)

    @contextlib.asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        value: object = None,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        length: int | None = None,
        again: bool | None = None,
        seconds: float | None = DEFAULT_TIMEOUT_SECONDS,
    ) -> AsyncIterator[Answer]:
        """An answer below 400, to be read within the block. `value` is sent as JSON, `body` as bytes, of which pieces
        are `length` if that is known. `again` says whether the request may be made twice; as a rule its method does.
        The answer must begin `seconds` after the request is through.

        Raises AgentboxHTTPError, NoServerError, LostConnectionError, TimeoutError.
        """
        sent: Body = b"" if body is None else body
        lines = [f"{method} {self._origin.path}{_target(path, query)} HTTP/1.1", self._lines]
        lines += [f"{name}: {text}" for name, text in (headers or {}).items()]
        if value is not None:
            sent = json.dumps(value, separators=(",", ":")).encode("ascii")
            lines.append("content-type: application/json")
        elif body is not None:
            lines.append("content-type: application/octet-stream")
        if isinstance(sent, bytes):
            if sent or method not in ("GET", "HEAD", "DELETE"):
                lines.append(f"content-length: {len(sent)}")
        else:
            lines.append("transfer-encoding: chunked" if length is None else f"content-length: {length}")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        answer = await self._exchange(head, sent, seconds, again=method in _AGAIN if again is None else again)
        try:
            if answer.status >= 400:
                wire.refused(_Refusal(answer, await answer.read()))
            yield answer
        finally:
            self._release(answer)

    async def _exchange(self, head: bytes, body: Body, seconds: float | None, *, again: bool) -> Answer:
        again = again and isinstance(body, bytes)
        while True:
            connection = await self._connection()
            try:
                return await connection.exchange(head, body, seconds)
            except LostConnectionError as error:
                connection.close()
                if not (again and error.untouched and connection.reused):
                    raise
                again = False
                # The others that waited as long have most likely ended with it.
                self._drop_idle()
            except BaseException:
                connection.close()
                raise

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.fresh(_IDLE_SECONDS):
                return connection
            connection.close()
        return await Connection.open(self._origin)

    def _release(self, answer: Answer) -> None:
        if answer.finished and answer.reusable and len(self._idle) < _MOST_IDLE:
            answer.connection.rest()
            self._idle.append(answer.connection)
        else:
            answer.connection.close()

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def close(self) -> None:
        """Close the kept connections."""
        self._drop_idle()
        # Transports close in the loop's next turn.
        await asyncio.sleep(0)


class _Refusal:
    """An answer as wire.refused reads it."""

    def __init__(self, answer: Answer, body: bytes) -> None:
        self.status_code = answer.status
        self.headers = answer.headers
        self.text = body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.text)


def _target(path: str, query: Mapping[str, object] | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value is not None}
    target = quote(path, safe="/-._~")
    if not given:
        return target
    return f"{target}?{urlencode(given, quote_via=quote, errors='surrogateescape')}"


__all__ = ["DEFAULT_TIMEOUT_SECONDS", "Transport", "http1"]
