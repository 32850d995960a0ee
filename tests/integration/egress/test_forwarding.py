# SPDX-License-Identifier: MIT
"""Ports of the guest's loopback and UNIX sockets that rules lead to the host's."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from tests.integration.egress.crossings import Crossings, rules_of
from tests.integration.egress.servers import Seen, echo_server, http_server, read_all


def inside(crossings: Crossings, family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
    """A listener that stands for a port of the guest's loopback."""
    address = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    return crossings.keep(socket.create_server((address, 0), family=family))


def connected(listener: socket.socket) -> socket.socket:
    client = socket.socket(listener.family)
    client.settimeout(20)
    client.connect(listener.getsockname()[:2] if listener.family != socket.AF_UNIX else listener.getsockname())
    return client


@pytest.mark.parametrize("rule", ["127.0.0.1", "localhost"])
def test_port_of_the_guests_loopback_leads_to_the_hosts(crossings: Crossings, rule: str) -> None:
    port, seen = crossings.serve(http_server)
    crossings.start(f"{rule}:{port}")
    listener = inside(crossings)
    crossings.call(lambda: crossings.gateway.listen([], {port: [listener]}, {}))
    for host in (f"localhost:{port}", f"127.0.0.1:{port}"):
        with connected(listener) as client:
            client.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            client.shutdown(socket.SHUT_WR)
            assert read_all(client).startswith(b"HTTP/1.1 200")
    with connected(listener) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: denied.test\r\n\r\n")
        assert read_all(client).startswith(b"HTTP/1.1 403")
    assert len(seen.requests) == 2
    assert {event.port for event in crossings.told("net.connect", allowed=True)} == {port}


def test_port_asked_for_by_ipv6_leads_to_a_server_that_has_only_ipv4(crossings: Crossings) -> None:
    port, _ = crossings.serve(echo_server)
    crossings.start(f"127.0.0.1:{port}")
    listener = inside(crossings, socket.AF_INET6)
    crossings.call(lambda: crossings.gateway.listen([], {port: [listener]}, {}))
    with connected(listener) as client:
        client.sendall(b"\x01")
        assert client.recv(1) == b"\x01"


def test_port_whose_rule_was_taken_away_is_refused(crossings: Crossings) -> None:
    port, seen = crossings.serve(echo_server)
    crossings.start(f"127.0.0.1:{port}")
    listener = inside(crossings)
    crossings.call(lambda: crossings.gateway.listen([], {port: [listener]}, {}))
    crossings.call(lambda: crossings.gateway.replace(rules_of("allowed.test")))
    with connected(listener) as client:
        client.sendall(b"\x01")
        with pytest.raises(ConnectionResetError):
            read_all(client)
    assert seen.connections == 0


def unix_server(crossings: Crossings, path: Path) -> Seen:
    seen = Seen()
    listener = crossings.keep(socket.socket(socket.AF_UNIX))
    listener.bind(str(path))
    listener.listen()

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            seen.connections += 1
            with connection:
                echo_server(connection, seen)

    threading.Thread(target=accept, daemon=True).start()
    return seen


def test_unix_socket_leads_to_the_hosts_as_it_is(crossings: Crossings, tmp_path: Path) -> None:
    path = tmp_path / "app.sock"
    seen = unix_server(crossings, path)
    crossings.start(f"unix:{path}")
    listener = crossings.keep(socket.socket(socket.AF_UNIX))
    listener.bind(str(tmp_path / "inside.sock"))
    listener.listen()
    crossings.call(lambda: crossings.gateway.listen([], {}, {str(path): listener}))
    data = b"GET / HTTP/1.1\r\nHost: whatever\r\n\r\n" + b"x" * 300_000
    with connected(listener) as client:
        threading.Thread(target=lambda: (client.sendall(data), client.shutdown(socket.SHUT_WR))).start()
        assert read_all(client) == data
    crossings.wait_for(lambda: crossings.told("net.close"))
    (made,) = crossings.told("net.unix")
    assert (made.host, made.allowed, made.port) == (str(path), True, None)
    crossings.call(lambda: crossings.gateway.replace(rules_of("allowed.test")))
    with connected(listener) as client:
        assert read_all(client) == b""
    assert seen.connections == 1
    (denial,) = crossings.told("net.unix", allowed=False)
    assert denial.rule_missing == f"net: unix:{path}"
