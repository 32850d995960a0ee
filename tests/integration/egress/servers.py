# SPDX-License-Identifier: MIT
"""Real servers on loopback addresses, in threads, and what clients of them need."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

WAIT_SECONDS = 20.0


@dataclass
class Seen:
    """What a server saw: the first bytes of each connection, and how each ended."""

    requests: list[bytes] = field(default_factory=list)
    connections: int = 0


class Servers:
    """Servers that end together."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def serve(self, handle: Callable[[socket.socket, Seen], None], address: str = "127.0.0.1") -> tuple[int, Seen]:
        """A server in threads that hands each connection to `handle`; its port and what it saw."""
        seen = Seen()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = self._stack.enter_context(socket.create_server((address, 0), family=family, backlog=1024))

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                seen.connections += 1
                threading.Thread(target=attend, args=(connection,), daemon=True).start()

        def attend(connection: socket.socket) -> None:
            connection.settimeout(WAIT_SECONDS)
            try:
                handle(connection, seen)
            except OSError:
                pass
            finally:
                connection.close()

        threading.Thread(target=accept, daemon=True).start()
        return listener.getsockname()[1], seen


def read_all(end: socket.socket) -> bytes:
    """Everything until the other side closes."""
    parts = []
    while part := end.recv(65536):
        parts.append(part)
    return b"".join(parts)


def read_until(end: socket.socket, mark: bytes) -> bytes:
    """Everything up to and with a mark, or the end."""
    data = b""
    while mark not in data and (part := end.recv(1)):
        data += part
    return data


def requests_in(end: socket.socket, seen: Seen) -> Iterator[bytes]:
    """Heads of requests without a body."""
    while (head := read_until(end, b"\r\n\r\n")).endswith(b"\r\n\r\n"):
        seen.requests.append(head)
        yield head


def http_server(end: socket.socket, seen: Seen) -> None:
    """Answers each request with its own first line."""
    for head in requests_in(end, seen):
        line = head.split(b"\r\n")[0]
        end.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(line), line))


def echo_server(end: socket.socket, seen: Seen) -> None:
    """Sends back what comes, also after the client has closed its direction."""
    while part := end.recv(65536):
        seen.requests.append(part)
        end.sendall(part)
    end.shutdown(socket.SHUT_WR)


def certificate(directory: Path, *names: str) -> Path:
    """A self-signed certificate with its key, in one file."""
    path = directory / "server.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "1", "-subj", "/CN=test", "-addext", "subjectAltName=" + ",".join(f"DNS:{name}" for name in names),
            "-keyout", str(path), "-out", str(directory / "certificate.pem"),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    path.write_text(path.read_text() + (directory / "certificate.pem").read_text())
    return path


def tls_server(pem: Path) -> Callable[[socket.socket, Seen], None]:
    """An HTTPS server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)

    def handle(connection: socket.socket, seen: Seen) -> None:
        with context.wrap_socket(connection, server_side=True) as end:
            http_server(end, seen)

    return handle


def tls_client(directory: Path) -> ssl.SSLContext:
    """What a client needs to believe `certificate`."""
    return ssl.create_default_context(cafile=str(directory / "certificate.pem"))
