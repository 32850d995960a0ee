# SPDX-License-Identifier: MIT
"""HTTP/1.1 on one connection, stricter than uvicorn's own: bounded headers, deadlines, no ambiguous framing.

llhttp already refuses two lengths, a length beside a transfer coding, bare line feeds, folded and nameless headers.
Added here: one Host, an origin-form target, no transfer coding from HTTP/1.0, no upgrade, a size and a deadline for
headers, a limit of connections, and no pipelining: what follows a request that has no answer yet is dropped, and the
connection closes after that answer. (The first byte after a request would otherwise hide that the client went away.)

An early answer, such as 413, must reach a client that is still sending. The rest of the body is therefore read and
dropped for a while before the connection closes; closing at once would reset it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from agentbox.server.body_rest import CAN_SPLICE, TAKE_REST, BodyRest
from agentbox.server.identifiers import new_request_id
from agentbox.server.supervised import DISCONNECT, Occasion

MAX_HEADER_BYTES = 64 << 10
MAX_HEADERS = 100
FLUSH_SECONDS = 30.0  # a client gets this long to take what is left of its answer
WRITE_STALL_SECONDS = 60.0  # one that takes nothing of its answer for so long loses its connection
_log = logging.getLogger("agentbox.server")


class RefusedError(Exception):
    """A request head that is not served; `status` answers it."""

    def __init__(self, status: int, detail: str, code: str, hint: str = "send plain HTTP/1.1") -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code
        self.hint = hint


class JoinedWrites:
    """What an answer is written to: its head waits for the first piece of its body, so that both leave in one call."""

    __slots__ = ("_begun", "_head", "_transport", "stays_open")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        # Whoever sets it closes the connection.
        self.stays_open = False
        self._head = b""
        self._begun = False

    def write(self, data: bytes) -> None:
        """The head, then pieces of the body."""
        if not self._begun:
            self._begun = True
            self._head = data
        elif self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection when everything is written."""
        if not self.stays_open:
            self._transport.close()

    def is_closing(self) -> bool:
        """Whether the connection is closed, or about to be."""
        return self._transport.is_closing()


class StrictProtocol(HttpToolsProtocol):
    """One connection. Subclasses set the class attributes, as uvicorn makes the objects itself."""

    read_timeout_seconds = 10.0
    max_connections = 4096

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection, or refuse it where there are too many."""
        self._deadline: asyncio.TimerHandle | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._gone: Occasion | None = None
        self._head_bytes = 0
        self._body_bytes = 0
        self._head_open = True
        self._message_open = False
        self._dropping = False
        self._close_wanted = False
        self._refused: RefusedError | None = None
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse(RefusedError(503, "Too many connections", "too_many_connections", "try again later"))
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers, and tell whoever serves a request."""
        for timer in (self._deadline, self._ending, self._stall):
            if timer is not None:
                timer.cancel()
        self._stall = None
        super().connection_lost(exc)
        self._disconnected()

    def _disconnected(self) -> None:
        if self._gone is not None and self.cycle.disconnected:
            self._gone.set()

    def pause_writing(self) -> None:
        """The client reads more slowly than it is written to."""
        super().pause_writing()
        self._watch_stall()

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _watch_stall(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(WRITE_STALL_SECONDS, self._judge_stall, unsent)

    def _judge_stall(self, unsent: int) -> None:
        if self.transport.get_write_buffer_size() < unsent:
            self._watch_stall()
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless what comes is to be dropped."""
        if self._dropping or self.transport.is_closing():
            return
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete) and not self._message_open:
            self._head_open = True
            self._arm()
        super().data_received(data)

    def on_message_begin(self) -> None:
        """A new request: count its head from zero."""
        if self._busy():
            self._dropping = True
            self.cycle.keep_alive = False
        self._head_bytes = self._body_bytes = 0
        self._head_open = True
        super().on_message_begin()

    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def on_url(self, url: bytes) -> None:
        """Part of the target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._count(len(name) + len(value) + 4)
        if self._message_open:
            return  # a trailer: what was judged at the head must not change afterwards
        if len(self.headers) >= MAX_HEADERS:
            self._fail(RefusedError(431, "Too many headers", "headers_too_large"))
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEADER_BYTES:
            self._fail(RefusedError(431, "The request head is too large", "headers_too_large"))

    def on_headers_complete(self) -> None:
        """Judge the head, then start the request."""
        self._head_open = False
        self._disarm()
        if self._dropping:
            return
        self._judge_head()
        self._message_open = True
        super().on_headers_complete()
        # Nothing is written after the head of an answer to HEAD.
        if self.scope["method"] != "HEAD" and not self.cycle.waiting_for_100_continue:
            self.cycle.transport = JoinedWrites(self.transport)  # type: ignore[assignment]
        self._gone = Occasion()
        self.scope["state"] |= {"abort_connection": self.transport.abort, DISCONNECT: self._gone}
        if CAN_SPLICE:
            self.scope["state"][TAKE_REST] = self._take_rest
        # Put back in on_message_complete; until then an answer must not close the connection under a sending client.
        self._close_wanted = not self.cycle.keep_alive
        self.cycle.keep_alive = True

    def _judge_head(self) -> None:
        names = [name for name, _ in self.headers]
        version = self.parser.get_http_version()
        if names.count(b"host") != 1:
            self._fail(RefusedError(400, "A request needs exactly one Host header", "bad_request"))
        if not self.url.startswith(b"/"):
            self._fail(RefusedError(400, "The target must be a path", "bad_request"))
        if version not in {"1.1", "1.0"} or (version == "1.0" and b"transfer-encoding" in names):
            self._fail(RefusedError(400, "HTTP/1.1 is needed", "bad_request"))
        if self.parser.should_upgrade():
            self._fail(RefusedError(400, "Upgrades are not supported; use plain HTTP/1.1", "upgrade_refused"))

    def on_body(self, body: bytes) -> None:
        """Part of a body."""
        if not self._dropping:
            self._body_bytes += len(body)
            super().on_body(body)

    def _take_rest(self) -> BodyRest | None:
        """What is still to come of the body, which this connection does not see any more; None where its length is not
        known, or it is here, or nobody has told the client to send it."""
        length = dict(self.headers).get(b"content-length")
        sock = self.transport.get_extra_info("socket")
        if not self._message_open or self._dropping or length is None or self.cycle.waiting_for_100_continue:
            return None
        if sock is None or self.transport.get_extra_info("sslcontext") is not None:
            return None
        self.flow.pause_reading()
        self._dropping = True
        # An answer says that the connection closes, and it does when the client has sent what it sends.
        self.cycle.keep_alive = False
        self._writes().stays_open = True
        buffered = bytes(self.cycle.body)
        self.cycle.body.clear()
        return BodyRest(os.dup(sock.fileno()), buffered, int(length) - self._body_bytes, self._rest_ended)

    def _rest_ended(self, whole: bool) -> None:
        """The connection is ours again."""
        if whole:
            self._message_open = self.cycle.more_body = False
            self._writes().stays_open = False
        self.flow.resume_reading()

    def _writes(self) -> JoinedWrites:
        writes: object = self.cycle.transport
        assert isinstance(writes, JoinedWrites)
        return writes

    def on_message_complete(self) -> None:
        """The whole request has arrived."""
        if self._dropping:
            return
        self._message_open = False
        if self.cycle.response_complete:
            if self._close_wanted:
                self.transport.close()
            if self._ending is not None:
                self._ending.cancel()
                self._ending = None
        else:
            self.cycle.keep_alive = self.cycle.keep_alive and not self._close_wanted
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is written; see that it gets out, and that the rest of the body ends."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._ending = self.loop.call_later(FLUSH_SECONDS, self.transport.abort)
        elif self._message_open:
            self._unset_keepalive_if_required()
            self._ending = self.loop.call_later(self.read_timeout_seconds, self._close_bounded)

    def timeout_keep_alive_handler(self) -> None:
        """The connection was idle for long."""
        self._close_bounded()

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser refused; a request in progress just loses its connection."""
        if self._busy() and self._message_open and not self.cycle.response_started:
            # A body that breaks its own framing: the application sees the client go away, the client sees why.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self.cycle.response_complete = True
            self._disconnected()
        self._refuse(self._refused or RefusedError(400, msg, "bad_request"))

    def _fail(self, refused: RefusedError) -> None:
        """End parsing; the parser turns what is raised here into its own error, which comes back as a 400."""
        self._refused = refused
        raise refused

    def _refuse(self, refused: RefusedError) -> None:
        self._dropping = True
        self._disarm()
        if self._busy():
            self.transport.abort()
            return
        request_id = new_request_id()
        _log.info("request refused request_id=%s status=%d code=%s", request_id, refused.status, refused.code)
        body = _body({"detail": refused.detail, "code": refused.code, "hint": refused.hint, "request_id": request_id})
        head = [
            STATUS_LINE[refused.status],
            b"content-type: application/json\r\n",
            b"content-length: %d\r\n" % len(body),
            b"x-request-id: " + request_id.encode() + b"\r\n",
            b"x-content-type-options: nosniff\r\n",
            b"connection: close\r\n\r\n",
        ]
        self.transport.write(b"".join(head) + body)
        self._close_bounded()

    def _close_bounded(self) -> None:
        if self.transport.is_closing():
            return
        self.transport.close()
        self._ending = self.loop.call_later(FLUSH_SECONDS, self.transport.abort)

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(self.read_timeout_seconds, self._head_too_slow)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _head_too_slow(self) -> None:
        self._deadline = None
        if self._head_open and not self.transport.is_closing():
            self._refuse(RefusedError(408, "The request head did not arrive in time", "head_timeout"))


def _body(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def protocol_class(read_timeout_seconds: float, max_connections: int) -> type[StrictProtocol]:
    """A protocol with these limits."""
    return type(
        "BoundedProtocol",
        (StrictProtocol,),
        {"read_timeout_seconds": read_timeout_seconds, "max_connections": max_connections},
    )
