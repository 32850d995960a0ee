# SPDX-License-Identifier: MIT
"""TCP through the gateway: to names and to addresses, with the endings that TCP has."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import threading

import pytest

from agentbox.egress.gateway import Limits
from tests.integration.egress.crossings import Crossings
from tests.integration.egress.servers import Seen, echo_server, read_all, read_until
from tests.ports import port_that_refuses

RESET = struct.pack("ii", 1, 0)


def test_name_is_connected_to_where_the_host_finds_it(crossings: Crossings) -> None:
    port, seen = crossings.serve(echo_server)
    crossings.start(f"allowed.test:{port}", "127.0.0.1", names={"allowed.test": "127.0.0.1"})
    client = crossings.connect("allowed.test", port)
    client.sendall(b"\x01hello")
    client.shutdown(socket.SHUT_WR)
    assert read_all(client) == b"\x01hello"
    assert seen.connections == 1
    crossings.wait_for(lambda: crossings.told("net.close"))
    (made,) = crossings.told("net.connect")
    assert (made.host, made.port, made.address, made.allowed) == ("allowed.test", port, "127.0.0.1", True)
    (closed,) = crossings.told("net.close")
    assert (closed.bytes_up, closed.bytes_down) == (6, 6)
    count = crossings.gateway.counters["allowed.test"]
    assert (count.connections, count.bytes_up, count.bytes_down) == (1, 6, 6)


def test_name_that_leads_to_a_private_address_is_refused_unless_a_rule_names_it(crossings: Crossings) -> None:
    port, seen = crossings.serve(echo_server)
    crossings.start("*", names={"rebind.test": "127.0.0.1"})
    client = crossings.connect("rebind.test", port)
    client.sendall(b"\x01")
    with pytest.raises(ConnectionResetError):
        read_all(client)
    assert seen.connections == 0
    (denial,) = crossings.told("net.connect", allowed=False)
    assert denial.host == "rebind.test"
    assert denial.address == "127.0.0.1"
    assert denial.rule_missing == f"net: 127.0.0.1:{port}"


def test_of_several_addresses_only_allowed_ones_are_tried_in_order(crossings: Crossings) -> None:
    port, seen = crossings.serve(echo_server, "127.0.0.5")
    crossings.start("many.test", "127.0.0.4", "127.0.0.5", names={"many.test": ["127.0.0.3", "127.0.0.4", "127.0.0.5"]})
    client = crossings.connect("many.test", port)
    client.sendall(b"\x01")
    assert client.recv(1) == b"\x01"
    (made,) = crossings.told("net.connect")
    assert made.address == "127.0.0.5"
    assert seen.connections == 1


def test_one_rate_counts_one_connection_whatever_addresses_are_tried(crossings: Crossings) -> None:
    port, _ = crossings.serve(echo_server, "127.0.0.5")
    crossings.start("many.test @1/h", "127.0.0.4", "127.0.0.5", names={"many.test": ["127.0.0.4", "127.0.0.5"]})
    first = crossings.connect("many.test", port)
    first.sendall(b"\x01")
    assert first.recv(1) == b"\x01"
    second = crossings.connect("many.test", port)
    second.sendall(b"\x01")
    with pytest.raises(ConnectionResetError):
        read_all(second)
    (denial,) = crossings.told("net.connect", allowed=False)
    assert "many.test @1/h" in (denial.rule or "")


def test_literal_address_needs_a_rule_for_it(crossings: Crossings) -> None:
    port, _ = crossings.serve(echo_server, "127.0.0.5")
    crossings.start(f"127.0.0.5:{port}")
    allowed = crossings.connect("127.0.0.5", port)
    allowed.sendall(b"\x01")
    assert allowed.recv(1) == b"\x01"
    for host, at in (("127.0.0.6", port), ("127.0.0.5", port + 1), ("169.254.169.254", 80)):
        denied = crossings.connect(host, at)
        denied.sendall(b"\x01")
        with pytest.raises(ConnectionResetError):
            read_all(denied)
    assert [event.host for event in crossings.told("net.connect", allowed=False)] == [
        "127.0.0.6",
        "127.0.0.5",
        "169.254.169.254",
    ]


def test_ipv6_address_is_connected_to(crossings: Crossings) -> None:
    port, _ = crossings.serve(echo_server, "::1")
    crossings.start(f"[::1]:{port}")
    client = crossings.connect("::1", port)
    client.sendall(b"\x01")
    assert client.recv(1) == b"\x01"


def test_synthetic_address_without_a_name_is_refused_whatever_the_rules_say(crossings: Crossings) -> None:
    crossings.start("cidr/198.18.0.0/15", "*")
    client = crossings.connect("198.18.77.7", 443)
    client.sendall(b"\x01")
    with pytest.raises(ConnectionResetError):
        read_all(client)
    (denial,) = crossings.told("net.connect", allowed=False)
    assert "stands for no name" in denial.reason


def test_server_may_speak_first(crossings: Crossings) -> None:
    def greet(end: socket.socket, seen: Seen) -> None:
        end.sendall(b"220 ready\r\n")
        seen.requests.append(read_until(end, b"\n"))
        end.sendall(b"250 hello\r\n")

    port, seen = crossings.serve(greet)
    crossings.start("127.0.0.1")
    client = crossings.connect("127.0.0.1", port)
    assert read_until(client, b"\n") == b"220 ready\r\n"
    client.sendall(b"EHLO me\r\n")
    assert read_until(client, b"\n") == b"250 hello\r\n"
    assert seen.requests == [b"EHLO me\r\n"]


def test_text_without_a_line_end_is_not_held_back(crossings: Crossings) -> None:
    port, _ = crossings.serve(echo_server)
    crossings.start("127.0.0.1")
    client = crossings.connect("127.0.0.1", port)
    for piece in (b"PIN", b"G pong", b" and more"):
        client.sendall(piece)
        got = b""
        while len(got) < len(piece):
            got += client.recv(64)
        assert got == piece


def test_either_side_may_close_one_direction_and_go_on_with_the_other(crossings: Crossings) -> None:
    def sink_then_answer(end: socket.socket, seen: Seen) -> None:
        seen.requests.append(read_all(end))
        end.sendall(b"got it")

    def answer_then_sink(end: socket.socket, seen: Seen) -> None:
        end.sendall(b"\x01bye")
        end.shutdown(socket.SHUT_WR)
        seen.requests.append(read_all(end))

    port, seen = crossings.serve(sink_then_answer)
    other_port, other_seen = crossings.serve(answer_then_sink)
    crossings.start("127.0.0.1")
    client = crossings.connect("127.0.0.1", port)
    client.sendall(b"\x01data")
    client.shutdown(socket.SHUT_WR)
    assert read_all(client) == b"got it"
    assert seen.requests == [b"\x01data"]
    other = crossings.connect("127.0.0.1", other_port)
    assert read_all(other) == b"\x01bye"
    other.sendall(b"\x01still here")
    other.close()
    crossings.wait_for(lambda: other_seen.requests)
    assert other_seen.requests == [b"\x01still here"]
    crossings.wait_for(lambda: not crossings.gateway._open)


def test_reset_of_either_side_reaches_the_other(crossings: Crossings) -> None:
    resets: list[str] = []

    def be_reset(end: socket.socket, seen: Seen) -> None:
        end.recv(1)
        try:
            read_all(end)
        except ConnectionResetError:
            resets.append("server")

    def reset(end: socket.socket, seen: Seen) -> None:
        end.recv(1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    port, _ = crossings.serve(be_reset)
    other_port, _ = crossings.serve(reset)
    crossings.start("127.0.0.1")
    client = crossings.connect("127.0.0.1", port)
    client.sendall(b"\x01")
    crossings.wait_for(lambda: crossings.gateway.counters)
    crossings.wait_for(lambda: crossings.gateway.counters["127.0.0.1"].bytes_up)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()
    crossings.wait_for(lambda: resets)
    other = crossings.connect("127.0.0.1", other_port)
    other.sendall(b"\x01")
    with pytest.raises(ConnectionResetError):
        read_all(other)
    crossings.wait_for(lambda: not crossings.gateway._open)


def test_what_a_server_said_before_it_reset_is_delivered(crossings: Crossings) -> None:
    def answer_and_leave(end: socket.socket, seen: Seen) -> None:
        end.recv(1)
        end.sendall(b"too large")

    port, _ = crossings.serve(answer_and_leave)
    crossings.start("127.0.0.1")
    client = crossings.connect("127.0.0.1", port)
    sent = threading.Thread(target=_send_what_is_taken, args=(client, b"\x01" * 3_000_000), daemon=True)
    sent.start()
    assert client.recv(9) == b"too large"


def _send_what_is_taken(end: socket.socket, data: bytes) -> None:
    try:
        end.sendall(data)
    except OSError:
        return


def test_refused_connection_is_a_reset_and_an_event(crossings: Crossings) -> None:
    crossings.start("127.0.0.1")
    with port_that_refuses() as port, pytest.raises(ConnectionResetError):
        read_all(crossings.connect("127.0.0.1", port))
    crossings.wait_for(lambda: crossings.told("net.connect"))
    (event,) = crossings.told("net.connect")
    assert event.allowed
    assert "refused" in event.reason.lower()


@pytest.mark.parametrize("slow", ["reader", "neither"])
def test_bulk_arrives_as_it_was_sent_both_ways_at_once(crossings: Crossings, slow: str) -> None:
    data = os.urandom(1 << 20) * 24

    def swap(end: socket.socket, seen: Seen) -> None:
        sender = threading.Thread(target=_send_what_is_taken, args=(end, data), daemon=True)
        sender.start()
        digest = hashlib.sha256()
        left = len(data) + 1
        while left:
            part = end.recv(977 if slow == "reader" and left % 3 == 0 else 1 << 17)
            digest.update(part)
            left -= len(part)
        seen.requests.append(digest.digest())
        sender.join()

    port, seen = crossings.serve(swap)
    crossings.start("127.0.0.1")
    client = crossings.connect("127.0.0.1", port)
    client.sendall(b"\x01")
    sender = threading.Thread(target=_send_what_is_taken, args=(client, data), daemon=True)
    sender.start()
    digest = hashlib.sha256()
    left = len(data)
    while left:
        part = client.recv(1 << 17)
        assert part
        digest.update(part)
        left -= len(part)
    sender.join()
    assert digest.digest() == hashlib.sha256(data).digest()
    crossings.wait_for(lambda: seen.requests)
    assert seen.requests[0] == hashlib.sha256(b"\x01" + data).digest()


def test_reader_that_does_not_read_stops_the_sender_and_costs_little(crossings: Crossings) -> None:
    go = threading.Event()

    def dawdle(end: socket.socket, seen: Seen) -> None:
        go.wait(20)
        digest = 0
        while part := end.recv(1 << 17):
            digest += len(part)
        seen.requests.append(str(digest).encode())

    port, seen = crossings.serve(dawdle)
    crossings.start("127.0.0.1")
    client = crossings.connect("127.0.0.1", port)
    client.setblocking(False)
    block = b"\x01" * 65536
    sent = 0

    def fill() -> bool:
        nonlocal sent
        try:
            while True:
                sent += client.send(block)
        except BlockingIOError:
            return True

    before = -1
    while before != sent:
        before = sent
        fill()
        crossings.call(lambda: None)
    (relay,) = crossings.gateway._open
    assert len(relay.up.unsent) <= 16 * 1024
    client.settimeout(20)
    go.set()
    client.close()
    crossings.wait_for(lambda: seen.requests)
    assert seen.requests == [str(sent).encode()]


def test_connections_beyond_the_limit_are_reset_and_counted(crossings: Crossings) -> None:
    port, _ = crossings.serve(echo_server)
    crossings.start("127.0.0.1", limits=Limits(connections=2))
    held = [crossings.connect("127.0.0.1", port) for _ in range(2)]
    for client in held:
        client.sendall(b"\x01")
        assert client.recv(1) == b"\x01"
    for _ in range(12):
        with pytest.raises(ConnectionResetError):
            read_all(crossings.connect("127.0.0.1", port))
    assert sum(event.count for event in crossings.told("net.connect", allowed=False)) == 10
    held[0].close()
    crossings.wait_for(lambda: len(crossings.gateway._open) == 1)
    again = crossings.connect("127.0.0.1", port)
    again.sendall(b"\x01")
    assert again.recv(1) == b"\x01"


def test_flood_of_one_denial_is_told_in_steps(crossings: Crossings) -> None:
    crossings.start("allowed.test")
    for _ in range(30):
        client = crossings.connect("127.0.0.9", 22)
        client.sendall(b"SSH-2.0-x\r\n")
        with pytest.raises(ConnectionResetError):
            read_all(client)
    counts = [event.count for event in crossings.told("net.connect", allowed=False)]
    assert counts == [1, 9]
    crossings.end_gateway()
    assert sum(event.count for event in crossings.told("net.connect", allowed=False)) == 30


def test_change_of_rules_ends_what_they_deny_and_nothing_else(crossings: Crossings) -> None:
    from tests.integration.egress.crossings import rules_of

    port, _ = crossings.serve(echo_server)
    other_port, _ = crossings.serve(echo_server, "127.0.0.5")
    crossings.start("127.0.0.1", "127.0.0.5 @1/h")
    ended, kept = crossings.connect("127.0.0.1", port), crossings.connect("127.0.0.5", other_port)
    for client in (ended, kept):
        client.sendall(b"\x01")
        assert client.recv(1) == b"\x01"
    crossings.call(lambda: crossings.gateway.replace(rules_of("127.0.0.5 @1/h")))
    with pytest.raises(ConnectionResetError):
        read_all(ended)
    kept.sendall(b"\x02")
    assert kept.recv(1) == b"\x02"
    (denial,) = crossings.told("net.connect", allowed=False)
    assert denial.host == "127.0.0.1"
    assert "changed" in denial.reason
    refused = crossings.connect("127.0.0.5", other_port)
    refused.sendall(b"\x01")
    with pytest.raises(ConnectionResetError):
        read_all(refused)


def test_closing_the_gateway_resets_what_is_open(crossings: Crossings) -> None:
    port, _ = crossings.serve(echo_server)
    crossings.start("127.0.0.1")
    client = crossings.connect("127.0.0.1", port)
    client.sendall(b"\x01")
    assert client.recv(1) == b"\x01"
    crossings.end_gateway()
    with pytest.raises(ConnectionResetError):
        read_all(client)
    assert len(crossings.told("net.close")) == 1


def test_client_that_is_denied_and_says_nothing_is_reset(crossings: Crossings) -> None:
    crossings.start("allowed.test")
    with pytest.raises(ConnectionResetError):
        read_all(crossings.connect("127.0.0.9", 3306))
    assert [event.host for event in crossings.told("net.connect", allowed=False)] == ["127.0.0.9"]
