# SPDX-License-Identifier: MIT
"""The wire: framing, sizes, deadlines, and clients that go away."""

from __future__ import annotations

import http.client
import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.integration.raw_http import connect, exchange, read_all, run_request
from tests.running_server import RunningServer

HEAD = "POST /v1/run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HIDDEN = run_request("print(40+2)")

AMBIGUOUS = {
    "length and coding": HEAD + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two lengths": HEAD + f"Content-Length: 0\r\nContent-Length: {len(HIDDEN)}\r\n\r\n" + HIDDEN,
    "two equal lengths": HEAD + "Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "unknown coding": HEAD + "Transfer-Encoding: xchunked\r\n\r\n" + HIDDEN,
    "coding after chunked": HEAD + "Transfer-Encoding: chunked, gzip\r\n\r\n" + HIDDEN,
    "tab before coding": HEAD + "Transfer-Encoding:\tchunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
    "negative length": HEAD + "Content-Length: -1\r\n\r\n" + HIDDEN,
    "signed length": HEAD + "Content-Length: +1\r\n\r\n" + HIDDEN,
    "NUL in a header": HEAD + "X: a\0b\r\nContent-Length: 0\r\n\r\n",
    "CR in a header": HEAD + "X: a\rb\r\nContent-Length: 0\r\n\r\n",
    "space before the colon": HEAD + "Content-Length : 0\r\n\r\n" + HIDDEN,
    "bare line feeds": HEAD.replace("\r\n", "\n") + "Content-Length: 0\n\n",
    "header without colon": HEAD + "Xabc\r\n\r\n",
    "folded header": HEAD + "X: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "absolute target": "GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no Host": "GET /health HTTP/1.1\r\n\r\n",
    "two Hosts": "GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    "HTTP/0.9": "GET /health\r\n\r\n",
    "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "coding from HTTP/1.0": "POST /v1/run HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    + HIDDEN,
    "bad chunk size": HEAD + "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "bare line feed in a chunk": HEAD + "Transfer-Encoding: chunked\r\n\r\n1\na\n0\n\n",
    "upgrade to h2c": HEAD + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n\r\n",
    "upgrade to websocket": HEAD + "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("data", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_request_that_could_be_read_in_two_ways_gets_one_400_and_a_closed_connection(
    server: RunningServer, data: str
) -> None:
    reply = exchange(server.url, data)
    assert reply.statuses == [400]
    assert reply.closed
    assert b"x-request-id" in reply.head


def test_request_that_follows_before_the_answer_is_not_run(server: RunningServer) -> None:
    reply = exchange(server.url, run_request("print(1)") + HIDDEN, 20.0)
    assert reply.statuses == [200]
    assert reply.closed


def test_trailer_cannot_stand_in_for_a_header(server: RunningServer) -> None:
    head = "POST /v1/run HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    content = '{"code":"print(40+2)"}'
    body = f"{len(content):x}\r\n{content}\r\n0\r\nContent-Type: application/json\r\n\r\n"
    assert exchange(server.url, head + body).statuses == [422]


def test_connection_serves_one_request_after_the_other(server: RunningServer) -> None:
    parts = urlsplit(server.url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=20)
    connection.connect()
    peer = connection.sock
    for _ in range(3):
        connection.request("GET", "/health")
        assert connection.getresponse().read().startswith(b'{"status":"ok"')
    assert connection.sock is peer
    connection.close()


def test_head_that_is_too_large_is_refused(server: RunningServer) -> None:
    head = "GET /health HTTP/1.1\r\nHost: localhost\r\n"
    assert exchange(server.url, head + f"X: {'a' * 70_000}\r\n\r\n").statuses == [431]
    assert exchange(server.url, head + "X: a\r\n" * 200 + "\r\n").statuses == [431]


def test_honest_large_body_is_refused_before_it_is_read_and_the_client_sees_why(server: RunningServer) -> None:
    size = 64 << 20
    with connect(server.url) as peer:
        peer.sendall((HEAD + f"Content-Length: {size}\r\n\r\n").encode())
        for _ in range(size >> 16):
            peer.sendall(b" " * 65536)
        assert peer.recv(200).startswith(b"HTTP/1.1 413")


def test_large_body_in_chunks_is_refused_while_it_is_read(server: RunningServer) -> None:
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    with connect(server.url) as peer:
        peer.sendall((HEAD + "Transfer-Encoding: chunked\r\n\r\n").encode())
        for _ in range(20):
            peer.sendall(chunk)
        assert peer.recv(200).startswith(b"HTTP/1.1 413")


def test_client_that_asks_first_is_not_told_to_continue_with_a_large_body(server: RunningServer) -> None:
    reply = exchange(server.url, HEAD + f"Expect: 100-continue\r\nContent-Length: {64 << 20}\r\n\r\n", 2.0)
    assert reply.statuses == [413]


def test_compressed_body_is_refused(server: RunningServer) -> None:
    assert exchange(
        server.url, run_request("1", headers="Content-Encoding: gzip\r\nConnection: close\r\n")
    ).statuses == [415]


def test_slow_head_and_slow_body_are_cut_while_others_are_answered(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(AGENTBOX_REQUEST_READ_TIMEOUT_SECONDS="1")
    slow_head = [connect(server.url) for _ in range(60)]
    slow_body = connect(server.url)
    try:
        for peer in slow_head:
            peer.sendall(b"POST /v1/run HTTP/1.1\r\nHost: localhost\r\nX-A: ")
        slow_body.sendall((HEAD + "Content-Length: 100\r\n\r\n{").encode())
        request = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert exchange(server.url, request, 60.0).statuses == [200]
        assert {tuple(read_all(peer).statuses) for peer in slow_head} == {(408,)}
        assert b'"body_timeout"' in read_all(slow_body).data
    finally:
        for peer in [*slow_head, slow_body]:
            peer.close()


def _processes_of(server: RunningServer, word: str) -> int:
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += word.encode() in path.read_bytes()
        except OSError:
            continue
    return found


def _until(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_client_that_goes_away_ends_its_run(server: RunningServer, accept: str) -> None:
    word = f"gone-{accept.replace('/', '-')}-{time.monotonic_ns()}"
    with connect(server.url) as peer:
        peer.sendall(run_request("import time; time.sleep(120)", headers=f"Accept: {accept}\r\n", args=[word]).encode())
        assert _until(lambda: _processes_of(server, word) > 0)
    assert _until(lambda: _processes_of(server, word) == 0)


def test_many_waiting_runs_leave_health_answering(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(AGENTBOX_MAX_CONCURRENT_RUNS="2")
    peers = [connect(server.url) for _ in range(1000)]
    try:
        for peer in peers:
            peer.sendall(run_request("import time; time.sleep(100)").encode())
        for _ in range(5):
            request = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            assert exchange(server.url, request, 60.0).statuses == [200]
    finally:
        for peer in peers:
            peer.close()
    assert server.stop() == 0


def test_stop_ends_runs_with_an_answer_and_exits_cleanly(start_server: Callable[..., RunningServer]) -> None:
    server = start_server()
    with connect(server.url) as peer:
        peer.sendall(run_request("print(1,flush=True)\nimport time; time.sleep(100)", headers="").encode())
        stopped = threading.Thread(target=server.stop, args=(signal.SIGTERM,))
        assert _until(lambda: _processes_of(server, "main.py") > 0)
        stopped.start()
        reply = read_all(peer)
        stopped.join(30)
    assert reply.statuses == [503]
    assert json.loads(reply.data.partition(b"\r\n\r\n")[2])["code"] == "stopping"
    assert server.process.returncode == 0
