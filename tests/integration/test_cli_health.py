# SPDX-License-Identifier: MIT
"""`agentbox health` asks a server, and does not take anybody else's word for it."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agentbox import __version__
from tests.integration.commands import agentbox, assert_is_told_what_to_do
from tests.running_server import RunningServer


def test_running_server_is_reported_with_version_backend_and_address(server: RunningServer) -> None:
    done = agentbox("health", "--url", server.url)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"agentbox {__version__} OK (backend jail, {server.url})\n"


def test_json_is_the_servers_answer_and_its_address(server: RunningServer) -> None:
    done = agentbox("health", "--json", "--url", server.url + "/")
    assert done.exit_code == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["status"] == "ok"
    assert answer["version"] == __version__
    assert answer["url"] == server.url


def test_no_server_is_said_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = agentbox("health", "--url", url)
    assert_is_told_what_to_do(done, 1, f"no server answers at {url}", "agentbox serve")
    assert done.stdout == ""


def test_proxy_of_the_environment_is_not_asked(server: RunningServer) -> None:
    proxy = {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    done = agentbox("health", "--url", server.url, environment=proxy)
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://127.0.0.1", "file:///etc/passwd"])
def test_address_that_is_no_http_url_is_refused(url: str) -> None:
    assert_is_told_what_to_do(agentbox("health", "--url", url), 2, "is not an http or https URL")


@pytest.mark.parametrize("url", ["http://", "http://127.0.0.1:notaport", "http://127.0.0.1:99999", "http://[::1"])
def test_malformed_url_is_no_traceback(url: str) -> None:
    done = agentbox("health", "--url", url)
    assert done.exit_code in {1, 2}
    assert "Traceback" not in done.stderr
    assert "hint: " in done.stderr


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b"<html>hello</html>", "not agentbox"),
        (200, b"[]", "not agentbox"),
        (200, b'{"status": "ok"}', "not agentbox"),
        (200, b'{"status": "stopping", "version": "1"}', "'stopping'"),
        (404, b"", "HTTP 404"),
        (500, b"", "HTTP 500"),
    ],
)
def test_something_else_that_answers_is_not_taken_for_agentbox(status: int, body: bytes, words: str) -> None:
    with _answering(status, body) as url:
        assert_is_told_what_to_do(agentbox("health", "--url", url), 1, words)


def test_peer_that_speaks_no_http_is_no_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"SSH-2.0-banner\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        done = agentbox("health", "--url", f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
    assert_is_told_what_to_do(done, 1)


@contextmanager
def _answering(status: int, body: bytes) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as peer:
        thread = threading.Thread(target=peer.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{peer.server_port}"
        peer.shutdown()
        thread.join()
