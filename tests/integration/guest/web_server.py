# SPDX-License-Identifier: MIT
"""A web server on loopback ports for tests of `agentbox.client.get`: it says what it was asked."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Server:
    """`port` answers; `asked` are method, path and headers of the requests that came, to `other_port` too."""

    port: int
    other_port: int
    asked: list[tuple[int, str, str, dict[str, str]]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def paths(self, port: int) -> list[str]:
        return [path for at, _, path, _ in self.asked if at == port]


@contextmanager
def web_server() -> Iterator[Server]:
    """Serve until the end: `/see/OTHER` redirects, `/again` with 307, `/status/N` answers with N, `/slow` drips."""
    released = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(size).decode()
            at = int(self.server.server_address[1])
            known.asked.append((at, self.command, self.path, dict(self.headers)))
            parts = self.path.partition("?")[0].split("/", 2)
            if parts[1] == "see":
                self.redirect(302, parts[2].replace("PORT", str(known.other_port)))
            elif parts[1] == "again":
                self.redirect(307, "/echo")
            elif parts[1] == "status":
                self.send_error(int(parts[2]), "as you wish")
            elif parts[1] == "slow":
                self.send_response(200)
                self.end_headers()
                while not released.wait(0.05):
                    self.wfile.write(b".")
            else:
                data = json.dumps({"method": self.command, "path": self.path, "body": body, "é": "ü"}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        do_GET = do_POST = do_PUT = answer  # noqa: N815

        def redirect(self, status: int, place: str) -> None:
            self.send_response(status)
            self.send_header("Location", place)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    known = Server(*(int(server.server_address[1]) for server in servers))
    threads = [threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield known
    finally:
        released.set()
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
