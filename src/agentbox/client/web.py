# SPDX-License-Identifier: MIT
"""Requests of `agentbox.client.get`: each address that a redirect leads to is asked about anew."""

from __future__ import annotations

import base64
import io
import socket
from email.message import Message
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from time import monotonic
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urljoin, urlsplit

from agentbox.client import effect, redaction

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_BODY_BYTES = 64 << 20
_MAX_REDIRECTS = 10
_REDIRECTS = (301, 302, 303, 307, 308)
_SAME_AGAIN = (307, 308)
_PORTS = {"http": 80, "https": 443}
_PIECE_BYTES = 1 << 16
# Of what a target may consist besides letters and digits; `%` because it is encoded already.
_TARGET_CHARACTERS = "/%:@!$&'()*+,;=~?-._"
_OF_A_BODY = ("content-length", "content-type", "transfer-encoding")
_DENIED = "agentbox: policy denies "


class Found:
    """An answer: status, reason, headers (pairs) and data."""

    def __init__(self, status: int, reason: str, headers: list[tuple[str, str]], data: bytes) -> None:
        self.status = status
        self.reason = reason
        self.headers = headers
        self.data = data

    def header(self, wanted: str) -> str | None:
        """The value of a header by its name in lower case."""
        return next((value for name, value in self.headers if name.lower() == wanted), None)


class _Place:
    """Where an address leads: `server` is scheme, host and port, `secret` what it has for Authorization."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        scheme, host = parts.scheme.lower(), parts.hostname
        shown = redaction.url(address)
        if scheme not in _PORTS:
            effect.ask("get", "other address", shown)
            raise ValueError(f"agentbox.client.get: {shown} is no http or https address")
        if not host or any(ord(character) <= 32 or ord(character) == 127 for character in address):
            raise ValueError(f"agentbox.client.get: {shown} is no address")
        if not host.isascii():
            host = host.encode("idna").decode("ascii")
        self.server = scheme, host, _PORTS[scheme] if parts.port is None else parts.port
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self.target = quote(target, safe=_TARGET_CHARACTERS)
        self.secret = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self.secret = "Basic " + base64.b64encode(pair.encode("utf-8")).decode("ascii")


def fetch(address: str, method: str, headers: dict[str, str], body: bytes | None, seconds: float) -> Found:
    """The last answer. Raises HTTPError, URLError, TimeoutError, ValueError, and PermissionError for what is denied."""
    deadline = monotonic() + seconds
    place = _Place(address)
    for _ in range(_MAX_REDIRECTS + 1):
        found = _exchange(place, method, headers, body, deadline, seconds)
        target = found.header("location")
        if found.status not in _REDIRECTS or target is None:
            if found.status >= 300:
                raise _failure(address, found, found.reason)
            return found
        if found.status not in _SAME_AGAIN and method != "HEAD":
            method, body = "GET", None
            headers = {name: value for name, value in headers.items() if name.lower() not in _OF_A_BODY}
        address = urljoin(address, target)
        before, place = place, _Place(address)
        if place.server != before.server:
            # What is meant for one server is not for the next.
            headers = {name: value for name, value in headers.items() if not redaction.is_secret(name)}
    found.data = b""
    raise _failure(address, found, f"it redirects more than {_MAX_REDIRECTS} times")


def _failure(address: str, found: Found, reason: str) -> HTTPError:
    headers = Message()
    for name, value in found.headers:
        headers[name] = redaction.headers({name: value})[name]
    return HTTPError(redaction.url(address), found.status, reason, headers, io.BytesIO(found.data))


def _exchange(
    place: _Place, method: str, headers: dict[str, str], body: bytes | None, deadline: float, seconds: float
) -> Found:
    scheme, host, port = place.server
    effect.ask("get", "connect", host, port)
    late = f"agentbox.client.get: no whole answer of {host}:{port} within {seconds:g} s"
    left = deadline - monotonic()
    if left <= 0:
        raise TimeoutError(late)
    kind: Any = HTTPConnection if scheme == "http" else HTTPSConnection
    connection = kind(host, port, timeout=left)
    wire = None
    try:
        connection.connect()
        wire = connection.sock = _Wire(connection.sock, deadline)
        given = {"User-Agent": "agentbox", "Connection": "close"}
        if place.secret is not None:
            given["Authorization"] = place.secret
        names = {name.lower() for name in headers}
        given = {name: value for name, value in given.items() if name.lower() not in names}
        connection.request(method, place.target, body, {**given, **headers})
        response = connection.getresponse()
        return Found(response.status, response.reason, list(response.getheaders()), _body_of(response))
    except socket.timeout:  # noqa: UP041 - another error before Python 3.10
        raise TimeoutError(late) from None
    except OSError as error:
        if str(error).startswith(_DENIED):
            raise
        raise URLError(error) from None
    except HTTPException as error:
        raise URLError(f"{type(error).__name__}: {error}") from None
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
        if size > _MAX_BODY_BYTES:
            raise ValueError(f"agentbox.client.get: the answer is larger than {_MAX_BODY_BYTES >> 20} MiB")


class _Wire:
    """A socket of which no wait goes beyond the deadline."""

    def __init__(self, connected: Any, deadline: float) -> None:
        self._socket = connected
        self._deadline = deadline

    def wait(self) -> Any:
        """The socket, for one call. Raises TimeoutError."""
        left = self._deadline - monotonic()
        if left <= 0:
            raise socket.timeout  # noqa: UP041
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
    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return int(self._wire.wait().recv_into(buffer))
