# SPDX-License-Identifier: MIT
"""A run with a way out in a warm box, whose own network is fitted out when it is taken: as in a box built for it."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from tests.integration.pool.test_watched import Run, compared_result, compared_trace, runner_of
from tests.integration.pool.watched_programs import Watched
from tests.running_server import RunningServer
from tests.standing import Standing

pytestmark = pytest.mark.linux
_WARM_SECONDS = 60.0


class Hello(BaseHTTPRequestHandler):
    """Says hello to everybody."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_request(self, *_: Any) -> None:
        """Nothing is printed."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Hello) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


LOOKS = """
import http.client, os, socket
def look(port):
    try:
        connection = http.client.HTTPConnection('127.0.0.1', port, timeout=20)
        connection.request('GET', '/')
        print(connection.getresponse().read())
    except OSError as error:
        print(type(error).__name__, error.errno)
look({port})
look({port} + 1)
try: print(socket.getaddrinfo('other.example', 80))
except OSError as error: print(error)
print(open('/etc/resolv.conf').read(), sorted(name for _, name in socket.if_nameindex()))
print(open('/proc/self/net/route').read() if os.access('/proc/self/net/route', os.R_OK) else '')
"""


def settings(port: int) -> dict[str, str]:
    return {"AGENTBOX_EGRESS_ALLOWLIST": f"127.0.0.1:{port}"}


def until_warm(run: Run, *cases: Watched) -> None:
    for case in cases:
        deadline = time.monotonic() + _WARM_SECONDS
        while run(case).start != "warm":
            assert time.monotonic() < deadline, "no run with a way out was warm for a minute"


def kinds(port: int) -> dict[str, Watched]:
    code = LOOKS.replace("{port}", str(port))
    return {
        "list": Watched(code, None, {"egress_allowlist": [f"127.0.0.1:{port}"]}),
        "policy": Watched(code, f"net: 127.0.0.1:{port}\nread: .\n"),
    }


@pytest.fixture(scope="module", params=["root", "user_with_cgroups"])
def warm(
    request: pytest.FixtureRequest,
    port: int,
    start_server: Callable[..., RunningServer],
    standings: Callable[[str], Standing],
) -> Iterator[Run]:
    server = start_server(standing=standings(request.param), **settings(port))
    with server.client() as client:
        run = runner_of(client)
        until_warm(run, *kinds(port).values())
        yield run


@pytest.fixture(scope="module")
def cold(port: int, start_server: Callable[..., RunningServer]) -> Iterator[Run]:
    with start_server(AGENTBOX_POOL="0", **settings(port)).client() as client:
        yield runner_of(client)


def told_once(records: dict[str, Any]) -> dict[str, Any]:
    """How often a resolver asks again is a matter of moments, and so is how many of its questions one record counts."""
    gateway = {(record["op"], record["kind"], record["args"].get("target")) for record in records["gateway"]}
    return {**records, "gateway": gateway}


@pytest.mark.parametrize("kind", ["list", "policy"])
def test_a_run_with_a_way_out_is_the_same_warm_and_cold(kind: str, port: int, warm: Run, cold: Run) -> None:
    case = kinds(port)[kind]
    expected, found = cold(case), warm(case)
    assert expected.start == "cold"
    assert found.start in ("warm", "forked")
    assert found.result["stdout"].startswith("b'hello'\nConnectionRefusedError 111\n"), found.result["stderr"]
    assert compared_result(found) == compared_result(expected)
    assert told_once(compared_trace(found)) == told_once(compared_trace(expected))
    assert found.result["egress"]["127.0.0.1"]["connections"] == 1
    assert any(record["origin"] == "gateway" for record in found.trace)


def test_warm_runs_with_a_way_out_share_no_network(port: int, warm: Run) -> None:
    code = (
        "import os, socket\nend = socket.create_server(('0.0.0.0', 4000))\nprint(os.stat('/proc/self/ns/net').st_ino)"
    )
    case = Watched(code, f"net: 127.0.0.1:{port}\nread: .\n")
    told = [warm(case) for _ in range(3)]
    assert {one.start for one in told} <= {"warm", "forked"}
    assert len({one.result["stdout"] for one in told}) == 3, [one.result["stderr"] for one in told]


def test_a_run_without_a_rule_gets_no_network_from_the_warm_ones(port: int, warm: Run) -> None:
    told = warm(Watched(kinds(port)["policy"].code, "read: ."))
    assert told.start in ("warm", "forked", "cold")
    assert "hello" not in told.result["stdout"]
    assert json.dumps(told.result["egress"]) == "{}"
