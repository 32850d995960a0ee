# SPDX-License-Identifier: MIT
"""The rest of the world, for tests: names, web, git, packages, web sockets, on public addresses of a namespace.

Run as `python world_services.py DIRECTORY`; says "ready" when everything listens. DIRECTORY has `server.pem`,
`www/` (served as it is), `git/` (bare repositories), and gets `hits` and `asked`: a line for each request to the host
that nobody may reach, and for each question for a name.
"""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import socketserver
import ssl
import struct
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WEB, EVIL, NAMES, OTHER = "45.67.89.10", "45.67.89.66", "45.67.89.53", "45.67.89.11"
WEB6 = "2a00:1450:4001:80b::10"
ZONE = {
    "web.example": ([WEB], [WEB6]),
    "six.example": ([], [WEB6]),
    "pkg.web.example": ([WEB], []),
    "other.example": ([OTHER], []),
    "evil.example": ([EVIL], []),
    "inside.example": (["10.0.0.1", "127.0.0.1", "169.254.169.254"], ["::1"]),
    "mapped.example": ([], ["::ffff:127.0.0.1"]),
}
_WEB_SOCKET_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
directory = sys.argv[1]


def note(file: str, line: str) -> None:
    with open(f"{directory}/{file}", "a", encoding="utf-8") as log:
        log.write(line + "\n")


class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, directory=f"{directory}/www")

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.server.server_address[0] == EVIL:
            note("hits", self.path)
        if self.headers.get("Upgrade", "").lower() == "websocket":
            self._web_socket()
        elif self.path == "/redirect":
            self._answer(302, b"", {"Location": "http://evil.example/after"})
        elif self.path.startswith("/git/"):
            self._git()
        elif self.path.startswith("/hello"):
            self._answer(200, f"hello {self.headers['Host']} {self.path}".encode())
        else:
            super().do_GET()

    def do_POST(self) -> None:
        if self.path.startswith("/git/"):
            self._git()
            return
        body = self._body()
        self._answer(200, hashlib.sha256(body).hexdigest().encode())

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _git(self) -> None:
        path, _, query = self.path.removeprefix("/git").partition("?")
        done = subprocess.run(
            ["/usr/lib/git-core/git-http-backend"],
            input=self._body() if self.command == "POST" else b"",
            capture_output=True,
            check=False,
            env={
                "GIT_PROJECT_ROOT": f"{directory}/git",
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
                "PATH": os.defpath,
            },
        )
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.decode().split(": ", 1) for line in head.split(b"\r\n") if b": " in line)
        self._answer(int(headers.pop("Status", "200").split()[0]), body, headers)

    def _web_socket(self) -> None:
        key = self.headers["Sec-WebSocket-Key"].encode() + _WEB_SOCKET_MAGIC
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while True:
            kind, length = self.rfile.read(1)[0], self.rfile.read(1)[0] & 0x7F
            mask = self.rfile.read(4)
            text = bytes(byte ^ mask[index % 4] for index, byte in enumerate(self.rfile.read(length)))
            self.wfile.write(bytes([kind, length]) + text)
            if kind & 0xF == 8:
                return


def records_of(question: bytes) -> bytes:
    """The answer to a question."""
    at, labels = 12, []
    while length := question[at]:
        labels.append(question[at + 1 : at + 1 + length].decode("latin-1"))
        at += 1 + length
    (kind,) = struct.unpack_from("!H", question, at + 1)
    name = ".".join(labels).lower()
    note("asked", name)
    found = ZONE.get(name)
    addresses = [] if found is None else found[0] if kind == 1 else found[1] if kind == 28 else []
    family = socket.AF_INET if kind == 1 else socket.AF_INET6
    answers = b""
    for address in addresses:
        packed = socket.inet_pton(family, address)
        answers += b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 60, len(packed)) + packed
    flags = 0x8180 if found is not None else 0x8183
    return question[:2] + struct.pack("!HHHHH", flags, 1, len(addresses), 0, 0) + question[12 : at + 5] + answers


class Datagrams(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        question, sock = self.request
        sock.sendto(records_of(question), self.client_address)


def serve(server: socketserver.BaseServer) -> None:
    threading.Thread(target=server.serve_forever, daemon=True).start()


class SixServer(ThreadingHTTPServer):
    address_family = socket.AF_INET6


def main() -> None:
    for address in (WEB, OTHER, EVIL):
        serve(ThreadingHTTPServer((address, 80), Handler))
        serve(ThreadingHTTPServer((address, 8081), Handler))
        secure = ThreadingHTTPServer((address, 443), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{directory}/server.pem")
        secure.socket = context.wrap_socket(secure.socket, server_side=True)
        serve(secure)
    serve(SixServer((WEB6, 80), Handler))
    serve(socketserver.UDPServer((NAMES, 53), Datagrams))
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
