# SPDX-License-Identifier: MIT
"""HTTP by hand: bytes on a socket, and what came back."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Reply:
    """Everything until the server closed or fell silent. `statuses` are those of all responses in it."""

    data: bytes
    closed: bool

    @property
    def statuses(self) -> list[int]:
        lines = self.data.split(b"\r\n")
        return [int(line.split(b" ")[1]) for line in lines if line.startswith(b"HTTP/1.")]

    @property
    def head(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[0].lower()


def connect(url: str, timeout: float = 20.0) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=timeout)


def exchange(url: str, data: bytes | str, timeout: float = 5.0) -> Reply:
    """Send `data` on a new connection and read until the server closes it, or sends nothing for `timeout` seconds."""
    with connect(url, timeout) as peer:
        peer.sendall(data.encode() if isinstance(data, str) else data)
        return read_all(peer)


def read_all(peer: socket.socket) -> Reply:
    """Read until the other side closes or the socket's timeout passes."""
    found = b""
    try:
        while part := peer.recv(65536):
            found += part
    except TimeoutError:
        return Reply(found, closed=False)
    except ConnectionResetError:
        pass
    return Reply(found, closed=True)


def run_request(code: str, *, host: str = "localhost", headers: str = "", **body: object) -> str:
    """The text of a POST /v1/run."""
    content = json.dumps({"code": code, **body})
    return (
        f"POST /v1/run HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{headers}"
        f"Content-Length: {len(content.encode())}\r\n\r\n{content}"
    )
