# SPDX-License-Identifier: MIT
"""TLS through the gateway: the server name must fit where the connection goes."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from agentbox.egress import crossing
from tests.integration.egress.crossings import Crossings
from tests.integration.egress.servers import echo_server, read_all, tls_client, tls_server

ASK = b"GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n"


def handshake(client: socket.socket, certificates: Path, name: str | None) -> ssl.SSLSocket:
    context = tls_client(certificates)
    context.check_hostname = name is not None
    return context.wrap_socket(client, server_hostname=name)


def test_server_name_that_is_the_name_connected_to_passes(crossings: Crossings, certificates: Path) -> None:
    port, seen = crossings.serve(tls_server(certificates / "server.pem"))
    crossings.start("allowed.test", "127.0.0.1", names={"allowed.test": "127.0.0.1"})
    with handshake(crossings.connect("allowed.test", port), certificates, "ALLOWED.test") as end:
        end.sendall(ASK)
        assert b"200 OK" in end.recv(4096)
    assert len(seen.requests) == 1


@pytest.mark.parametrize("name", ["denied.test", "other.test"])
def test_other_server_name_is_refused_by_an_alert(crossings: Crossings, certificates: Path, name: str) -> None:
    port, seen = crossings.serve(tls_server(certificates / "server.pem"))
    crossings.start(
        "allowed.test", "other.test", "127.0.0.1:1", f"127.0.0.1:{port}", names={"allowed.test": "127.0.0.1"}
    )
    hello = client_hello(name)
    client = crossings.connect("allowed.test", port)
    client.sendall(hello)
    assert read_all(client) == b"\x15\x03\x03\x00\x02\x02\x70"
    assert seen.requests == []
    (denial,) = crossings.told("net.connect", allowed=False)
    assert denial.host == name
    assert denial.hint


def test_client_understands_the_alert(crossings: Crossings, certificates: Path) -> None:
    port, _ = crossings.serve(tls_server(certificates / "server.pem"))
    crossings.start("allowed.test", "127.0.0.1", names={"allowed.test": "127.0.0.1"})
    with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
        handshake(crossings.connect("allowed.test", port), certificates, "denied.test")


def test_host_that_no_rule_allows_is_refused_by_an_alert(crossings: Crossings, certificates: Path) -> None:
    crossings.start("allowed.test")
    for host in ("denied.test", "127.0.0.1"):
        with pytest.raises(ssl.SSLError, match=r"(?i)access.denied"):
            handshake(crossings.connect(host, 443), certificates, "denied.test")
    assert [event.rule_missing for event in crossings.told("net.connect", allowed=False)] == [
        "net: denied.test:443",
        "net: 127.0.0.1:443",
    ]


def test_name_that_leads_to_a_denied_address_is_refused_by_an_alert(crossings: Crossings, certificates: Path) -> None:
    crossings.start("rebind.test", names={"rebind.test": "127.0.0.1"})
    with pytest.raises(ssl.SSLError, match=r"(?i)access.denied"):
        handshake(crossings.connect("rebind.test", 443), certificates, "rebind.test")


def test_client_without_a_server_name_reaches_what_it_connected_to(crossings: Crossings, certificates: Path) -> None:
    port, _ = crossings.serve(tls_server(certificates / "server.pem"))
    crossings.start("allowed.test", "127.0.0.1", names={"allowed.test": "127.0.0.1"})
    for host in ("allowed.test", "127.0.0.1"):
        with handshake(crossings.connect(host, port), certificates, None) as end:
            end.sendall(ASK)
            assert b"200 OK" in end.recv(4096)


def test_address_takes_a_server_name_that_the_rules_allow(crossings: Crossings, certificates: Path) -> None:
    port, _ = crossings.serve(tls_server(certificates / "server.pem"))
    crossings.start("allowed.test", "127.0.0.1")
    with handshake(crossings.connect("127.0.0.1", port), certificates, "allowed.test") as end:
        end.sendall(ASK)
        assert b"200 OK" in end.recv(4096)
    with pytest.raises(ssl.SSLError, match=r"(?i)unrecognized.name"):
        handshake(crossings.connect("127.0.0.1", port), certificates, "denied.test")


def test_hello_in_single_bytes_is_read(crossings: Crossings, certificates: Path) -> None:
    port, seen = crossings.serve(tls_server(certificates / "server.pem"))
    crossings.start("allowed.test", "127.0.0.1", names={"allowed.test": "127.0.0.1"})
    client = crossings.connect("allowed.test", port)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    hello = client_hello("denied.test")
    for byte in hello[:-1]:
        client.send(bytes([byte]))
    assert seen.requests == []
    client.send(hello[-1:])
    assert read_all(client) == b"\x15\x03\x03\x00\x02\x02\x70"


def test_what_only_begins_as_tls_is_refused(crossings: Crossings, certificates: Path) -> None:
    port, seen = crossings.serve(tls_server(certificates / "server.pem"))
    crossings.start("127.0.0.1")
    client = crossings.connect("127.0.0.1", port)
    client.sendall(b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00")
    assert read_all(client) == b"\x15\x03\x03\x00\x02\x02\x32"
    assert seen.requests == []


def test_refused_client_may_go_on_sending_and_still_read_why(crossings: Crossings, certificates: Path) -> None:
    port, _ = crossings.serve(tls_server(certificates / "server.pem"))
    crossings.start("allowed.test", "127.0.0.1", names={"allowed.test": "127.0.0.1"})
    client = crossings.connect("allowed.test", port)
    client.sendall(client_hello("denied.test") + b"\x17\x03\x03\x40\x00" + b"x" * 0x4000)
    assert read_all(client) == b"\x15\x03\x03\x00\x02\x02\x70"


def client_hello(name: str) -> bytes:
    """The first message of a real client."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_hello_that_does_not_go_on_is_ended(crossings: Crossings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossing, "HELLO_SECONDS", 0.05)
    port, seen = crossings.serve(echo_server)
    crossings.start("127.0.0.1")
    client = crossings.connect("127.0.0.1", port)
    client.sendall(client_hello("allowed.test")[:100])
    with pytest.raises(ConnectionResetError):
        read_all(client)
    assert seen.requests == []
    (denial,) = crossings.told("net.connect", allowed=False)
    assert "in time" in denial.reason
