# SPDX-License-Identifier: MIT
"""The outermost layer: request ids, the Host, Origin and key checks, the access log, and the last answer to a fault."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentbox.server.access import DEFAULT_OWNER, HostRule, KeyRing, origin_is_own
from agentbox.server.identifiers import new_request_id
from agentbox.server.problems import Problem, encode, from_error
from agentbox.server.supervised import ClientGoneError

OPEN_PATHS = frozenset({"/health", "/openapi.json", "/docs", "/redoc"})
WRITE_STALL_SECONDS = 60.0
CLIENT_GONE_STATUS = 499  # only in the log: nobody is left to read it
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}\Z")
_access = logging.getLogger("agentbox.access")
_log = logging.getLogger("agentbox.server")


@dataclass(slots=True)
class _Exchange:
    """What the log line says about one request and its answer."""

    request_id: str
    owner: str = "-"
    status: int = 0
    sent_bytes: int = 0
    finished: bool = False


class Gate:
    """ASGI middleware; see the module's text."""

    def __init__(self, app: ASGIApp, keys: KeyRing, hosts: HostRule) -> None:
        self.app = app
        self.keys = keys
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.monotonic()
        exchange = _Exchange(_request_id(scope))
        answer = _Answer(scope, send, exchange)
        try:
            exchange.owner = self._admit(scope)
            scope.setdefault("state", {}).update(request_id=exchange.request_id, owner=exchange.owner)
            await self.app(scope, receive, answer)
        except Problem as problem:
            await answer.problem(problem)
        except (ClientGoneError, ClientDisconnect):
            exchange.status = CLIENT_GONE_STATUS
            answer.abort()
        except Exception as error:
            _log.exception("request failed request_id=%s", exchange.request_id)
            await answer.problem(from_error(error))
        finally:
            _access.info(
                "request_id=%s method=%s path=%s status=%d ms=%.1f owner=%s bytes=%d",
                exchange.request_id,
                scope["method"],
                scope["path"][:200],
                exchange.status,
                (time.monotonic() - begun) * 1000,
                exchange.owner,
                exchange.sent_bytes,
            )

    def _admit(self, scope: Scope) -> str:
        """The caller's name. Raises Problem: 421, 403, 401."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self.hosts.allows(host):
            raise Problem(
                421,
                "The Host header names another server",
                "foreign_host",
                "use a loopback address, or have the operator add the name to AGENTBOX_ALLOWED_HOSTS",
            )
        for origin in headers.getlist("origin"):
            if not origin_is_own(origin, host):
                raise Problem(
                    403,
                    "Requests from pages of other origins are refused",
                    "foreign_origin",
                    "call the API from a program, not from a page of another site",
                )
        if not self.keys:
            return DEFAULT_OWNER
        owner = self.keys.owner_of(_key(headers))
        if owner is not None:
            return owner
        if scope["path"] in OPEN_PATHS:
            return "-"
        raise Problem(
            401,
            "An API key is required",
            "unauthorized",
            "send Authorization: Bearer KEY, or X-API-Key: KEY",
            {"WWW-Authenticate": 'Bearer realm="agentbox"'},
        )


def _key(headers: Headers) -> str:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return headers.get("x-api-key", "").strip()


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.match(value):
            return str(value.decode("ascii"))
    return new_request_id()


class _Answer:
    """`send` that adds headers, counts, and gives up on a client that does not read."""

    def __init__(self, scope: Scope, send: Send, exchange: _Exchange) -> None:
        self._scope = scope
        self._send = send
        self._exchange = exchange

    async def __call__(self, message: Message) -> None:
        exchange = self._exchange
        if message["type"] == "http.response.start":
            exchange.status = message["status"]
            headers = [
                *message.get("headers", ()),
                (b"x-request-id", exchange.request_id.encode()),
                (b"x-content-type-options", b"nosniff"),
            ]
            message = {**message, "headers": headers}
        else:
            exchange.sent_bytes += len(message.get("body", b""))
            exchange.finished = not message.get("more_body", False)
        try:
            async with asyncio.timeout(WRITE_STALL_SECONDS):
                await self._send(message)
        except TimeoutError:
            raise ClientGoneError from None

    async def problem(self, problem: Problem) -> None:
        """Answer with a problem, or cut the connection where an answer has begun."""
        if self._exchange.status:
            self.abort()
            return
        body = encode(problem.body(self._exchange.request_id))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
        await self({"type": "http.response.start", "status": problem.status, "headers": headers})
        await self({"type": "http.response.body", "body": body})

    def abort(self) -> None:
        """Drop the connection with what is still unsent."""
        if not self._exchange.finished and (abort := self._scope.get("state", {}).get("abort_connection")):
            abort()
