# SPDX-License-Identifier: MIT
"""The way of `exec` through a keeper: what a server passes on arrives in one piece as a rule, in the form that the
server gives it, and is read, run and answered without the layers of a request that may be anything. Everything else,
and every such request in another form, takes the usual way."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from agentbox.errors import AgentboxError
from agentbox.server.problems import Problem, encode, from_error
from agentbox.server.protocol import StrictProtocol
from agentbox.server.sandboxes.bodies import ExecBody
from agentbox.server.sandboxes.keeper_socket import OWNER_HEADER
from agentbox.server.sandboxes.reading import Desk
from agentbox.server.sandboxes.routes_commands import execute
from agentbox.server.supervised import ClientGoneError, Occasion

_FIRST = re.compile(rb"POST /v1/sandboxes/([A-Za-z0-9_-]+)/exec HTTP/1\.1\Z")
_BEGINNING = b"POST /v1/sandboxes/"
_KNOWN = frozenset({b"host", OWNER_HEADER, b"x-request-id", b"accept", b"content-type", b"content-length"})
_log = logging.getLogger("agentbox.server")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to execute a command, as it was passed on."""

    owner: str
    sandbox_id: str
    request_id: str
    content_type: str
    body: bytes


def read(data: bytes) -> Asked | None:
    """The request that `data` is; None where it is another, or not all of one."""
    end = data.find(b"\r\n\r\n")
    if end < 0 or not data.startswith(_BEGINNING):
        return None
    first, *lines = data[:end].split(b"\r\n")
    named = _FIRST.match(first)
    headers = dict(line.split(b": ", 1) for line in lines if b": " in line)
    if named is None or len(headers) != len(lines) or not headers.keys() <= _KNOWN:
        return None
    body, length = data[end + 4 :], headers.get(b"content-length", b"")
    if OWNER_HEADER not in headers or not length.isdigit() or int(length) != len(body):
        return None
    return Asked(
        headers[OWNER_HEADER].decode("latin-1"),
        named[1].decode("ascii"),
        headers.get(b"x-request-id", b"-").decode("latin-1"),
        headers.get(b"content-type", b"").decode("latin-1"),
        body,
    )


class ExpressProtocol(StrictProtocol):
    """A connection of a server to its keeper. Subclasses set `desk`, as uvicorn makes the objects itself."""

    desk: Desk
    _fed = False
    _express: Occasion | None = None
    _ends = False

    def data_received(self, data: bytes) -> None:
        """Take a request the short way, or have it parsed."""
        if self._express is not None:
            # A server asks one thing at a time.
            self.transport.abort()
        elif self._between_requests() and (asked := read(data)) is not None:
            self._disarm()
            self._unset_keepalive_if_required()
            self._express = Occasion()
            task = self.loop.create_task(self._serve(asked, self._express))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        else:
            self._fed = True
            super().data_received(data)

    def _between_requests(self) -> bool:
        """Whether the parser waits for the beginning of a request."""
        if not self._fed:
            return not self._dropping
        idle = self.cycle is not None and self.cycle.response_complete and not self._message_open
        return idle and self._deadline is None and not self._dropping and not self.transport.is_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Whoever waits for the command does so no longer."""
        super().connection_lost(exc)
        if self._express is not None:
            self._express.set()

    def shutdown(self) -> None:
        """Close it, after what is answered now."""
        if self._express is None:
            super().shutdown()
        else:
            self._ends = True

    async def _serve(self, asked: Asked, gone: Occasion) -> None:
        try:
            answer = await self._answer(asked, gone)
        except (ClientGoneError, ClientDisconnect):
            self.transport.abort()
            return
        finally:
            self._express = None
        if not self.transport.is_closing():
            self.transport.write(answer)
            if self._ends:
                self.transport.close()

    async def _answer(self, asked: Asked, gone: Occasion) -> bytes:
        desk = self.desk
        try:
            body = desk.parsed(asked.owner, asked.body, asked.content_type, ExecBody)
            sandbox = await desk.awaken(asked.owner, asked.sandbox_id)
            return _response(200, encode(await execute(desk, sandbox, body, gone)), {})
        except Problem as error:
            problem = error
        except (ClientGoneError, ClientDisconnect):
            raise
        except AgentboxError as error:
            problem = from_error(error)
            if problem.status >= 500:
                _log.error("request failed request_id=%s: %s", asked.request_id, error)
        except Exception as error:
            _log.exception("request failed request_id=%s", asked.request_id)
            problem = from_error(error)
        return _response(problem.status, encode(problem.body(asked.request_id)), problem.headers)


def _response(status: int, body: bytes, headers: Mapping[str, str]) -> bytes:
    lines = [b"content-type: application/json", b"content-length: %d" % len(body)]
    lines += [f"{name}: {value}".encode("latin-1") for name, value in headers.items()]
    return STATUS_LINE[status] + b"\r\n".join(lines) + b"\r\n\r\n" + body
