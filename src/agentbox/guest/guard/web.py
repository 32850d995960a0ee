# SPDX-License-Identifier: MIT
"""Requests to web servers for the functions for agents: each address that a redirect leads to is asked about anew.

What it uses of the standard library is loaded at the first request, and is the program's own copy: a program that
changes that changes its own requests, which the kernel and the gateway judge as they judge all others.
"""

from __future__ import annotations

import io
from time import monotonic

from .channel import base64
from .redaction import is_secret, url
from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_BODY_BYTES = 64 << 20
_MAX_REDIRECTS = 10
_REDIRECTS = (301, 302, 303, 307, 308)
_SAME_AGAIN = (307, 308)
_PORTS = {"http": 80, "https": 443}
_PIECE_BYTES = 1 << 16
# Of what a target may consist besides letters and digits; `%` because it is encoded already.
_TARGET_CHARACTERS = "/%:@!$&'()*+,;=~?-._"
_NO_BODY = ("content-length", "content-type", "transfer-encoding")


class NoConnection(Exception):  # noqa: N818
    """There was no answer: `cause` is the error of the system, if one is the cause."""

    def __init__(self, message: str, cause: Any = None) -> None:
        super().__init__(message)
        self.cause = cause


@sealed
class Web:
    """Makes requests. `may_connect` is asked for each host and port: it gives the error to raise, or None; `refused`
    gives the error for an address of another kind than http and https."""

    def __init__(self, may_connect: Any, refused: Any) -> None:
        self._may_connect = may_connect
        self._refused = refused

    def fetch(self, address: str, method: str, headers: Any, body: Any, timeout_seconds: float) -> Any:
        """The last answer: (status, reason, headers, data, address). Raises NoConnection, TimeoutError, ValueError, and
        what it was refused by."""
        from urllib.parse import urljoin

        deadline = monotonic() + timeout_seconds
        for _ in range(_MAX_REDIRECTS + 1):
            place = self._place(address)
            status, reason, received, data = self._exchange(place, method, headers, body, deadline, timeout_seconds)
            target = next((value for name, value in received if name.lower() == "location"), None)
            if status not in _REDIRECTS or target is None:
                return status, reason, received, data, address
            if status not in _SAME_AGAIN and method != "HEAD":
                method, body = "GET", None
                headers = {name: value for name, value in headers.items() if name.lower() not in _NO_BODY}
            address = urljoin(address, target)
            if self._place(address)[:3] != place[:3]:
                # What is meant for one server is not for the next.
                headers = {name: value for name, value in headers.items() if not is_secret(name)}
        return status, f"it redirects more than {_MAX_REDIRECTS} times", received, b"", address

    def _place(self, address: str) -> Any:
        """Scheme, host, port, target and authorization of an address."""
        from urllib.parse import quote, unquote, urlsplit

        parts = urlsplit(address)
        scheme, host = parts.scheme.lower(), parts.hostname
        if scheme not in _PORTS:
            refused = self._refused(url(address))
            if refused is not None:
                raise refused
            raise ValueError(f"agentbox.client.get: {url(address)} is no http or https address")
        if not host or any(ord(character) <= 32 or ord(character) == 127 for character in address):
            raise ValueError(f"agentbox.client.get: {url(address)} is no address")
        if not host.isascii():
            host = host.encode("idna").decode("ascii")
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        secret = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            secret = "Basic " + base64(pair.encode("utf-8"))
        port = _PORTS[scheme] if parts.port is None else parts.port
        return scheme, host, port, quote(target, safe=_TARGET_CHARACTERS), secret

    def _exchange(
        self, place: Any, method: str, headers: Any, body: Any, deadline: float, timeout_seconds: float
    ) -> Any:
        """Status, reason, headers and data of one answer."""
        from http.client import HTTPConnection, HTTPException, HTTPSConnection

        scheme, host, port, target, secret = place
        refused = self._may_connect(host, port)
        if refused is not None:
            raise refused
        late = f"agentbox.client.get: no whole answer of {host}:{port} within {timeout_seconds:g} s"
        left = deadline - monotonic()
        if left <= 0:
            raise TimeoutError(late)
        kind: Any = HTTPConnection if scheme == "http" else HTTPSConnection
        connection = kind(host, port, timeout=left)
        wire = None
        try:
            connection.connect()
            wire = connection.sock = Wire(connection.sock, deadline)
            given = {"User-Agent": "agentbox", "Connection": "close"}
            if secret is not None:
                given["Authorization"] = secret
            names = {name.lower() for name in headers}
            given = {name: value for name, value in given.items() if name.lower() not in names}
            connection.request(method, target, body, {**given, **headers})
            response = connection.getresponse()
            data = _body_of(response)
            return response.status, response.reason, list(response.getheaders()), data
        except TimeoutError:
            raise TimeoutError(late) from None
        except OSError as error:
            if str(error).startswith("agentbox: policy denies "):
                raise
            if type(error).__name__ == "timeout":
                # Before Python 3.10 sockets have an error of their own for it.
                raise TimeoutError(late) from None
            raise NoConnection(str(error), error) from None
        except HTTPException as error:
            raise NoConnection(f"{type(error).__name__}: {error}") from None
        finally:
            connection.close()
            if wire is not None:
                wire.end()


def _body_of(response: Any) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        piece = response.read1(_PIECE_BYTES)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise ValueError(f"agentbox.client.get: the answer is larger than {MAX_BODY_BYTES >> 20} MiB")


class Wire:
    """A socket of which no wait goes beyond the deadline."""

    def __init__(self, socket: Any, deadline: float) -> None:
        self._socket = socket
        self._deadline = deadline

    def wait(self) -> Any:
        """The socket, for one call. Raises TimeoutError."""
        left = self._deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        return self._socket

    def sendall(self, data: Any) -> None:
        """Send everything."""
        self.wait().sendall(data)

    def makefile(self, *_: Any, **__: Any) -> Any:
        """What the answer is read from."""
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """The answer is still read after its connection was closed; `end` closes the socket."""

    def end(self) -> None:
        """Close the socket."""
        self._socket.close()


class _Reader(io.RawIOBase):
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return int(self._wire.wait().recv_into(buffer))
