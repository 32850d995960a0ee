# SPDX-License-Identifier: MIT
"""One connection to a server that is kept open. Sockets alone, because client and server share the processors."""

from __future__ import annotations

import json
import re
import socket
import time
from typing import Any
from urllib.parse import urlsplit

LIMIT_SECONDS = 60.0
_TIMINGS = re.compile(rb'"timings":\s*(\{[^}]*\})')


class Connection:
    """Posts the same body again and again, and gives the milliseconds from the first byte sent to the last received."""

    def __init__(self, url: str, body: dict[str, Any], *, stream: bool = False) -> None:
        parts = urlsplit(url)
        assert parts.hostname
        assert parts.port
        self.address = (parts.hostname, parts.port)
        data = json.dumps(body).encode()
        accept = "text/event-stream" if stream else "*/*"
        self.request = (
            f"POST /v1/run HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\nAccept: {accept}\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        ).encode() + data
        self.socket: socket.socket | None = None
        self.answer = b""
        self.first_ms = 0.0

    def __call__(self) -> float:
        """One run; RuntimeError when it did not print 1."""
        connection = self.ready()
        begin = time.perf_counter()
        connection.sendall(self.request)
        self.answer, self.first_ms = b"", 0.0
        while not answered(self.answer):
            piece = connection.recv(65536)
            if not piece:
                raise RuntimeError(f"the server closed the connection: {self.answer[-300:]!r}")
            self.answer += piece
            if not self.first_ms and b'"text":"1' in self.answer:
                self.first_ms = (time.perf_counter() - begin) * 1000
        elapsed = (time.perf_counter() - begin) * 1000
        check(self.answer)
        return elapsed

    def first(self) -> float:
        """One streamed run: the milliseconds until the event with its output was there."""
        self()
        return self.first_ms

    def ready(self) -> socket.socket:
        """The connection, opened again when the server closed it meanwhile because it was idle."""
        if self.socket is not None:
            self.socket.setblocking(False)
            try:
                closed = self.socket.recv(1) == b""
            except BlockingIOError:
                closed = False
            except OSError:
                closed = True
            self.socket.settimeout(LIMIT_SECONDS)
            if not closed:
                return self.socket
            self.close()
        self.socket = socket.create_connection(self.address, LIMIT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.socket

    def send(self) -> None:
        """Send the request; what comes is for the caller to read."""
        assert self.socket is not None
        self.answer = b""
        self.socket.sendall(self.request)

    def ready_bytes(self) -> bytes:
        """What has arrived; b"" when the server has closed the connection."""
        assert self.socket is not None
        return self.socket.recv(65536)

    def timings(self) -> dict[str, Any]:
        """Where the time of the last run went, as far as its answer says it."""
        found = _TIMINGS.search(self.answer)
        return dict(json.loads(found[1])) if found else {}

    def close(self) -> None:
        """Close it; a later call opens it again."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None


def answered(data: bytes) -> bool:
    """Whether these bytes are a whole answer, by its length or its last chunk."""
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        return False
    head = head.lower()
    at = head.find(b"content-length:")
    if at >= 0:
        return len(body) >= int(head[at + 15 :].split(b"\r\n", 1)[0])
    return body.endswith(b"0\r\n\r\n")


def check(answer: bytes) -> None:
    """RuntimeError unless the answer is 200 and the program printed 1."""
    if b" 200 " not in answer[:20] or b'"1\\n"' not in answer:
        status, _, rest = answer.partition(b"\r\n")
        body = rest.partition(b"\r\n\r\n")[2]
        raise RuntimeError(f"the run failed: {(status + b' ' + body)[:500].decode(errors='replace')}")
