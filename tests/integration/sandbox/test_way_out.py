# SPDX-License-Identifier: MIT
"""The way out of a sandbox: none, or what the `net:` rules of its policy allow."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from agentbox.models import Layer
from tests.integration.sandbox.conftest import MakeSandbox

ASK = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=10).status)"


@pytest.fixture
def served() -> Iterator[int]:
    """The port of a server on the host's loopback."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def test_a_rule_opens_what_it_names_and_nothing_else(make_sandbox: MakeSandbox, served: int) -> None:
    with make_sandbox("jail", policy=f"net: 127.0.0.1:{served}\n") as sandbox:
        address = f"http://127.0.0.1:{served}/"
        assert sandbox.exec(["python3", "-c", ASK, address]).stdout == b"204\n"
        assert sandbox.exec(["python3", "-c", ASK, "http://other.test/"]).exit_code == 1
        assert sandbox.enforcement.network is Layer.GATEWAY
        assert [denial.target for denial in sandbox.denials][:1] == ["other.test"]
        sandbox.reset()
        assert sandbox.exec(["python3", "-c", ASK, address]).stdout == b"204\n"


def test_without_a_policy_the_host_cannot_be_reached(make_sandbox: MakeSandbox, served: int) -> None:
    with make_sandbox("jail") as sandbox:
        assert sandbox.exec(["python3", "-c", ASK, f"http://127.0.0.1:{served}/"]).exit_code == 1
        assert sandbox.denials == ()
