# SPDX-License-Identifier: MIT
"""The filter of the backend without a wall: what it refuses, and that nobody is told it is more than a filter."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest

from tests.running_server import RunningServer

PYTHON = """
import socket, sys, urllib.request
for url in sys.argv[1:]:
    try: print(urllib.request.urlopen(url, timeout=5).status)
    except OSError as error: print(getattr(error, "reason", error))
below = socket.socket()
try: socket._socket.socket.connect_ex(below, ("192.0.2.1", 9)); print("connected")
except OSError as error: print(error)
"""
NODE = """
(async () => {
  for (const url of process.argv.slice(2)) {
    try { console.log((await fetch(url)).status); }
    catch (error) { console.log(error.cause.code, error.cause.message); }
  }
  require('dns').resolve4('example.com', (error) => console.log(error.code));
  const socket = require('dgram').createSocket('udp4');
  socket.send('x', 9, '192.0.2.1', (error) => { console.log(error.code); socket.close(); });
})();
"""


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), _Answers) as answering:
        threading.Thread(target=answering.serve_forever, daemon=True).start()
        yield answering.server_port
        answering.shutdown()


@pytest.fixture(scope="module")
def client(start_server: Callable[..., RunningServer], port: int) -> Iterator[httpx.Client]:
    arguments = ("--backend", "subprocess", "--allow-unisolated")
    with start_server(arguments=arguments, AGENTBOX_EGRESS_ALLOWLIST=f"localhost:{port}").client() as found:
        yield found


def _run(client: httpx.Client, code: str, language: str, *urls: str, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/run", json={"code": code, "language": language, "args": list(urls), **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def test_python_reaches_what_the_list_names_and_nothing_else(client: httpx.Client, port: int) -> None:
    urls = [f"http://localhost:{port}/", f"http://127.0.0.1:{port}/", "http://example.com/"]
    body = _run(client, PYTHON, "python", *urls)
    assert body["stdout"].splitlines() == [
        "200",
        "200",
        "agentbox egress denied: example.com",
        "agentbox egress denied: 192.0.2.1",
    ], body


def test_node_reaches_what_the_list_names_and_nothing_else(client: httpx.Client, port: int) -> None:
    body = _run(client, NODE, "javascript", f"http://localhost:{port}/", "http://example.com/")
    assert body["stdout"].splitlines() == [
        "200",
        "EGRESS_DENIED agentbox egress denied: example.com",
        "EGRESS_DENIED",
        "EGRESS_DENIED",
    ], body


@pytest.mark.parametrize(("code", "language"), [(PYTHON, "python"), (NODE, "javascript")])
def test_empty_list_of_the_request_denies_everything(client: httpx.Client, port: int, code: str, language: str) -> None:
    body = _run(client, code, language, f"http://localhost:{port}/", egress_allowlist=[])
    assert "200" not in body["stdout"], body
    assert "egress denied: localhost" in body["stdout"]


def test_result_says_that_the_interpreter_alone_holds_it(client: httpx.Client) -> None:
    for language in ("python", "javascript"):
        body = _run(client, ";" if language == "javascript" else "pass", language)
        assert (body["enforcement"]["network"], body["network_isolated"]) == ("interpreter", False)
    assert _run(client, "true", "bash")["enforcement"]["network"] == "none"


def test_filter_leaves_the_program_s_own_module_path_and_options_alone(client: httpx.Client) -> None:
    body = _run(client, "import os; print(os.environ['PYTHONPATH'])", "python", env={"PYTHONPATH": "/elsewhere"})
    assert body["stdout"].rstrip().endswith("soft_egress:/elsewhere")
