# SPDX-License-Identifier: MIT
"""The edge alone, around a runner that fails or streams on command."""

from __future__ import annotations

import socket
import threading

import httpx
import pytest

from agentbox.config import Settings
from agentbox.errors import ConfinementError, OverloadedError
from agentbox.server import protocol, stream
from tests.integration.raw_http import run_request
from tests.unit.server.memory_runner import live_server


def test_fault_of_ours_is_a_json_500_and_the_connection_stays() -> None:
    with live_server() as server, httpx.Client(base_url=server.url) as client:
        server.runner.failure = ZeroDivisionError("/root/secret.py")
        for _ in range(2):
            answer = client.post("/v1/run", json={"code": "1"})
            assert answer.status_code == 500
            assert answer.json()["detail"] == "Internal Server Error"
            assert "secret" not in answer.text
        assert client.get("/health").status_code == 200


def test_box_that_cannot_be_built_is_503_without_details_of_the_host() -> None:
    with live_server() as server, httpx.Client(base_url=server.url) as client:
        server.runner.failure = ConfinementError("/sys/fs/cgroup: permission denied", step="cgroup")
        answer = client.post("/v1/run", json={"code": "1"})
    assert answer.status_code == 503
    assert "/sys" not in answer.text


def test_fault_before_the_first_event_of_a_stream_has_its_own_status() -> None:
    with live_server() as server, httpx.Client(base_url=server.url) as client:
        server.runner.failure = OverloadedError("full", retry_after_seconds=3)
        answer = client.post("/v1/run", json={"code": "1"}, headers={"Accept": "text/event-stream"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")


def test_quiet_stream_is_kept_open_by_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "OPENING_SECONDS", 0.01)
    monkeypatch.setattr(stream, "HEARTBEAT_SECONDS", 0.01)
    with live_server() as server, httpx.Client(base_url=server.url) as client:
        lines = client.post(
            "/v1/run",
            json={"code": "import time; time.sleep(0.5)"},
            headers={"Accept": "text/event-stream"},
            timeout=20,
        ).text.split("\n")
    assert lines.count(": heartbeat") > 1
    assert "event: result" in lines


def test_stream_that_the_server_stops_ends_with_an_error_event(monkeypatch: pytest.MonkeyPatch) -> None:
    with live_server() as server, httpx.Client(base_url=server.url, timeout=20) as client:
        code = "print(1, flush=True)\nimport time; time.sleep(60)"
        with client.stream("POST", "/v1/run", json={"code": code}, headers={"Accept": "text/event-stream"}) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "event: stdout"
            server.stop()
            rest = list(lines)
        assert server.runner.ended == 1
    assert "event: error" in rest


def test_run_is_over_when_its_client_has_gone() -> None:
    with live_server() as server:
        with httpx.Client(base_url=server.url, timeout=0.5) as client, pytest.raises(httpx.ReadTimeout):
            client.post("/v1/run", json={"code": "import time; time.sleep(60)"})
        server.stop()
        assert server.runner.ended == 1


def test_client_that_takes_nothing_of_its_answer_loses_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = threading.Event()
    forget = protocol.StrictProtocol.connection_lost

    def connection_lost(connection: protocol.StrictProtocol, error: Exception | None) -> None:
        forget(connection, error)
        lost.set()

    monkeypatch.setattr(protocol.StrictProtocol, "connection_lost", connection_lost)
    monkeypatch.setattr(protocol, "WRITE_STALL_SECONDS", 0.05)
    with live_server() as server, socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        peer.connect((server.host, server.port))
        # More than the kernel keeps for a connection.
        peer.sendall(run_request("print('x' * (12 << 20))").encode())
        assert lost.wait(30)
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_head_and_body_of_an_answer_come_in_one_piece() -> None:
    with live_server() as server, socket.create_connection((server.host, server.port), 10) as peer:
        for _ in range(2):
            peer.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert peer.recv(65536).endswith(b"}")
        peer.sendall(b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert peer.recv(65536).startswith(b"HTTP/1.1 405 ")


def test_one_connection_too_many_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(port=0, max_concurrent_runs=1, max_queued_runs=0)
    monkeypatch.setattr("agentbox.server.listening.SPARE_CONNECTIONS", 2)
    with live_server(settings) as server:
        peers = [socket.create_connection((server.host, server.port), 10) for _ in range(3)]
        for peer in peers:
            peer.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert peer.recv(65536).startswith(b"HTTP/1.1 200")
        with socket.create_connection((server.host, server.port), 10) as late:
            assert late.recv(65536).startswith(b"HTTP/1.1 503")
        for peer in peers:
            peer.close()
