# SPDX-License-Identifier: MIT
"""Requests that the thread which asks waits for itself: no event loop and no second thread takes part, each of whose
turns costs as much as a small command."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import time
from typing import Any

from agentbox.sdk import wire
from agentbox.sdk.errors import LostConnectionError, NoServerError
from agentbox.sdk.http1 import CONNECT_TIMEOUT_SECONDS, Origin

# As the kept connections of sdk.transport.
_IDLE_SECONDS = 5.0
_MOST_IDLE = 16
_MAX_HEAD_BYTES = 1 << 16
_PIECE_BYTES = 1 << 18


class BlockingTransport:
    """Requests to one server, from any number of threads, each on a connection of its own while it lasts."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """Raises ValueError for what is no http or https URL."""
        self._origin = Origin.of(url)
        lines = [f"Host: {self._origin.authority}", "User-Agent: agentbox"]
        lines += [f"{name}: {value}" for name, value in wire.headers(api_key).items()]
        self._lines = "\r\n".join(lines)
        self._idle: list[tuple[socket.socket, float]] = []
        self._process = os.getpid()

    def post(self, path: str, value: object, seconds: float) -> Any:
        """The JSON of the answer to some JSON, which must begin within so many seconds. It is asked once.

        Raises AgentboxHTTPError, NoServerError, LostConnectionError, TimeoutError.
        """
        body = json.dumps(value, separators=(",", ":")).encode("ascii")
        head = (
            f"POST {self._origin.path}{path} HTTP/1.1\r\n{self._lines}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        sock = self._connection()
        try:
            sock.settimeout(seconds)
            answer = _Answer(sock)
            try:
                sock.sendall(head.encode("latin-1") + body)
                answer.read()
            except (TimeoutError, LostConnectionError):
                raise
            except (OSError, ValueError) as error:
                raise LostConnectionError(f"the connection was lost: {error}", untouched=answer.untouched) from error
        except BaseException:
            sock.close()
            raise
        if answer.stays and len(self._idle) < _MOST_IDLE:
            self._idle.append((sock, time.monotonic()))
        else:
            sock.close()
        if answer.status_code >= 400:
            wire.refused(answer)
        return answer.json()

    def _connection(self) -> socket.socket:
        if self._process != os.getpid():
            # A child that was forked: these are its parent's.
            self._process = os.getpid()
            self.close()
        while True:
            try:
                sock, used = self._idle.pop()
            except IndexError:
                return self._open()
            if time.monotonic() - used < _IDLE_SECONDS and _silent(sock):
                return sock
            sock.close()

    def _open(self) -> socket.socket:
        origin = self._origin
        try:
            sock = socket.create_connection((origin.host, origin.port), CONNECT_TIMEOUT_SECONDS)
        except TimeoutError:
            raise NoServerError(f"no answer within {CONNECT_TIMEOUT_SECONDS:g} s") from None
        except OSError as error:
            raise NoServerError(error.strerror or str(error)) from error
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if origin.scheme == "https":
                return ssl.create_default_context().wrap_socket(sock, server_hostname=origin.host)
        except OSError as error:
            sock.close()
            raise NoServerError(error.strerror or str(error)) from error
        return sock

    def close(self) -> None:
        """Close the kept connections."""
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop()[0].close()


def _silent(sock: socket.socket) -> bool:
    """Whether nothing came since the answer before: not even its end."""
    sock.settimeout(0)
    try:
        sock.recv(1) if isinstance(sock, ssl.SSLSocket) else sock.recv(1, socket.MSG_PEEK)
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False
    return False


class _Answer:
    """An answer, read whole, as wire.refused reads it. `stays` says whether its connection may serve again."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = bytearray()
        self._body = b""
        self.status_code = 0
        self.headers: dict[str, str] = {}
        self.stays = False

    @property
    def untouched(self) -> bool:
        """See LostConnectionError."""
        return not self._data and not self.status_code

    def read(self) -> None:
        """Take it from the connection. Raises LostConnectionError, OSError, ValueError."""
        while self.status_code < 200:
            self._read_head()
        length = self.headers.get("content-length", "")
        if self.status_code in (204, 304):
            self._body = b""
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._body = self._chunks()
        elif length.isdigit():
            self._body = self._take(int(length))
        else:
            self.stays = False
            with contextlib.suppress(LostConnectionError):
                while True:
                    self._more()
            self._body = bytes(self._data)

    def _read_head(self) -> None:
        while (end := self._data.find(b"\r\n\r\n")) < 0:
            if len(self._data) > _MAX_HEAD_BYTES:
                raise LostConnectionError("the head of the answer is too long to be one")
            self._more()
        first, *lines = self._take(end + 4)[:-4].decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise LostConnectionError("what answers does not speak HTTP")
        self.status_code = int(rest[:3])
        self.headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if colon:
                self.headers[name.strip().lower()] = value.strip()
        self.stays = version != "HTTP/1.0" and self.headers.get("connection", "").lower() != "close"

    def _chunks(self) -> bytes:
        pieces = []
        while size := int(self._line().partition(b";")[0], 16):
            pieces.append(self._take(size))
            self._line()
        while self._line():
            pass
        return b"".join(pieces)

    def _line(self) -> bytes:
        while (end := self._data.find(b"\r\n")) < 0:
            if len(self._data) > _MAX_HEAD_BYTES:
                raise LostConnectionError("a line of the answer is too long to be one")
            self._more()
        return self._take(end + 2)[:-2]

    def _take(self, size: int) -> bytes:
        while len(self._data) < size:
            self._more()
        taken = bytes(self._data[:size])
        del self._data[:size]
        return taken

    def _more(self) -> None:
        piece = self._sock.recv(_PIECE_BYTES)
        if not piece:
            text = "without an answer" if self.untouched else "in the middle of an answer"
            raise LostConnectionError(f"the server closed the connection {text}", untouched=self.untouched)
        self._data += piece

    @property
    def text(self) -> str:
        """The body as text."""
        return self._body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body as JSON, None for an empty one. Raises ValueError."""
        return json.loads(self._body) if self._body else None
