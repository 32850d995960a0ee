# SPDX-License-Identifier: MIT
"""The outermost layer: request ids, the Host, Origin and key checks, the access log, and the last answer to a fault."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentbox.errors import AgentboxError
from agentbox.models import DEFAULT_OWNER
from agentbox.server import logs
from agentbox.server.access import HostRule, KeyRing, origin_is_own
from agentbox.server.identifiers import new_request_id
from agentbox.server.problems import Problem, encode, from_error
from agentbox.server.supervised import ClientGoneError

OPEN_PATHS = frozenset({"/health", "/openapi.json", "/docs", "/redoc"})
NOBODY = "-"  # the caller of an open path who gave no key
CLIENT_GONE_STATUS = 499  # only in the log: nobody is left to read it
REMEMBERED_HOSTS = 64
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}\Z")
_access = logging.getLogger("agentbox.access")
_log = logging.getLogger("agentbox.server")


class Gate:
    """ASGI middleware; see the module's text."""

    def __init__(self, app: ASGIApp, keys: KeyRing, hosts: HostRule) -> None:
        self.app = app
        self.keys = keys
        self.hosts = hosts
        # Headers that were allowed; a few, as a client may send any number of them.
        self._known_hosts: set[bytes] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.monotonic()
        # Of a header that occurs twice the first counts.
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        request_id = headers.get(b"x-request-id", b"")
        answer = _Answer(scope, send, request_id.decode("ascii") if _REQUEST_ID.match(request_id) else new_request_id())
        owner = NOBODY
        try:
            owner = self._admit(scope, headers)
            scope.setdefault("state", {}).update(request_id=answer.request_id, owner=owner)
            await self.app(scope, receive, answer)
        except Problem as problem:
            await answer.problem(problem)
        except (ClientGoneError, ClientDisconnect):
            answer.status = CLIENT_GONE_STATUS
            answer.abort()
        except AgentboxError as error:
            found = from_error(error)
            if found.status >= 500:
                _log.error("request failed request_id=%s: %s", answer.request_id, error)
            await answer.problem(found)
        except Exception as error:
            _log.exception("request failed request_id=%s", answer.request_id)
            await answer.problem(from_error(error))
        finally:
            milliseconds = (time.monotonic() - begun) * 1000
            logs.info(
                _access,
                f"request_id={answer.request_id} method={scope['method']} path={scope['path'][:200]} "
                f"status={answer.status} ms={milliseconds:.1f} owner={owner} bytes={answer.sent_bytes}",
            )

    def _admit(self, scope: Scope, headers: Mapping[bytes, bytes]) -> str:
        """The caller's name. Raises Problem: 421, 403, 401."""
        host = headers.get(b"host", b"")
        if host not in self._known_hosts:
            self._judge_host(host)
        if b"origin" in headers:
            _judge_origins(scope, host)
        if not self.keys:
            return DEFAULT_OWNER
        owner = self.keys.owner_of(_key(headers))
        if owner is not None:
            return owner
        if scope["path"] in OPEN_PATHS:
            return NOBODY
        raise Problem(
            401,
            "An API key is required",
            "unauthorized",
            "send Authorization: Bearer KEY, or X-API-Key: KEY",
            {"WWW-Authenticate": 'Bearer realm="agentbox"'},
        )

    def _judge_host(self, host: bytes) -> None:
        if not self.hosts.allows(host.decode("latin-1")):
            raise Problem(
                421,
                "The Host header names another server",
                "foreign_host",
                "use a loopback address, or have the operator add the name to AGENTBOX_ALLOWED_HOSTS",
            )
        if len(self._known_hosts) < REMEMBERED_HOSTS:
            self._known_hosts.add(host)


def _judge_origins(scope: Scope, host: bytes) -> None:
    for name, value in scope["headers"]:
        if name == b"origin" and not origin_is_own(value.decode("latin-1"), host.decode("latin-1")):
            raise Problem(
                403,
                "Requests from pages of other origins are refused",
                "foreign_origin",
                "call the API from a program, not from a page of another site",
            )


def _key(headers: Mapping[bytes, bytes]) -> str:
    scheme, _, value = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return headers.get(b"x-api-key", b"").decode("latin-1").strip()


class _Answer:
    """`send` that adds headers and knows what the log line says."""

    __slots__ = ("_finished", "_scope", "_send", "request_id", "sent_bytes", "status")

    def __init__(self, scope: Scope, send: Send, request_id: str) -> None:
        self.request_id = request_id
        self.status = 0
        self.sent_bytes = 0
        self._finished = False
        self._scope = scope
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [
                *message.get("headers", ()),
                (b"x-request-id", self.request_id.encode()),
                (b"x-content-type-options", b"nosniff"),
            ]
            message = {**message, "headers": headers}
        else:
            self.sent_bytes += len(message.get("body", b""))
            self._finished = not message.get("more_body", False)
        await self._send(message)

    async def problem(self, problem: Problem) -> None:
        """Answer with a problem, or cut the connection where an answer has begun."""
        if self.status:
            self.abort()
            return
        body = encode(problem.body(self.request_id))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
        await self({"type": "http.response.start", "status": problem.status, "headers": headers})
        await self({"type": "http.response.body", "body": body})

    def abort(self) -> None:
        """Drop the connection with what is still unsent."""
        if not self._finished and (abort := self._scope.get("state", {}).get("abort_connection")):
            abort()
