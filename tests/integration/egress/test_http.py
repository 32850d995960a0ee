# SPDX-License-Identifier: MIT
"""Plain HTTP through the gateway: each request is judged, whatever came before it on the connection."""

from __future__ import annotations

import http.client
import json
import socket
import threading

import pytest

from agentbox.egress import crossing
from tests.integration.egress.crossings import Crossings
from tests.integration.egress.servers import Seen, echo_server, http_server, read_all, read_until, requests_in
from tests.ports import port_that_refuses

NAMES = {"allowed.test": "127.0.0.1", "other.test": "127.0.0.1"}


def begin(crossings: Crossings, *more: str) -> tuple[int, Seen]:
    port, seen = crossings.serve(http_server)
    crossings.start(f"allowed.test:{port}", f"127.0.0.1:{port}", *more, names=NAMES)
    return port, seen


def ask(crossings: Crossings, port: int, data: bytes, host: str = "allowed.test") -> bytes:
    """Everything that comes back for what is sent, until the end of the connection."""
    client = crossings.connect(host, port)
    client.sendall(data)
    client.shutdown(socket.SHUT_WR)
    return read_all(client)


def refusal(answer: bytes) -> dict[str, object]:
    """The object of a 403."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 403 "), answer
    return json.loads(body)


def get(host: str, path: str = "/") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def test_requests_of_a_kept_connection_pass_one_by_one(crossings: Crossings) -> None:
    port, seen = begin(crossings)
    client = crossings.connect("allowed.test", port)
    for path in ("/one?secret=1", "/two"):
        client.sendall(get(f"allowed.test:{port}", path))
        assert read_until(client, f"GET {path} HTTP/1.1".encode()).startswith(b"HTTP/1.1 200")
    assert seen.connections == 1
    assert [(event.method, event.path, event.host) for event in crossings.told("net.request")] == [
        ("GET", "/one", "allowed.test"),
        ("GET", "/two", "allowed.test"),
    ]


@pytest.mark.parametrize("host", ["denied.test", "denied.test:80", "127.0.0.9", "[::1]"])
def test_request_for_another_host_is_answered_with_what_an_agent_needs(crossings: Crossings, host: str) -> None:
    port, seen = begin(crossings)
    told = refusal(ask(crossings, port, get(host)))
    name = host.removesuffix(":80")
    missing = f"{name}:{80 if host.endswith(':80') else port}"
    assert told == {
        "error": "policy_denied",
        "host": name.strip("[]"),
        "rule_missing": f"net: {missing}",
        "hint": f"add `net: {missing}` to the policy",
        "retry": False,
    }
    assert seen.requests == []
    (event,) = crossings.told("net.request", allowed=False)
    assert event.refusal() == told


def test_denied_host_answers_http_with_a_403(crossings: Crossings) -> None:
    crossings.start("allowed.test")
    told = refusal(ask(crossings, 8080, get("denied.test"), host="denied.test"))
    assert (told["host"], told["rule_missing"]) == ("denied.test", "net: denied.test:8080")
    answer = ask(crossings, 8080, b"HEAD / HTTP/1.1\r\nHost: denied.test\r\n\r\n", host="denied.test")
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert answer.endswith(b"\r\n\r\n")


def test_second_request_is_denied_after_the_answer_to_the_first(crossings: Crossings) -> None:
    port, seen = begin(crossings)
    answer = ask(crossings, port, get("allowed.test") + get("denied.test") + get("allowed.test", "/third"))
    first, _, second = answer.partition(b"GET / HTTP/1.1")
    assert first.startswith(b"HTTP/1.1 200")
    assert refusal(second)["host"] == "denied.test"
    assert len(seen.requests) == 1


def test_body_that_looks_like_a_request_is_a_body(crossings: Crossings) -> None:
    def take_post(end: socket.socket, seen: Seen) -> None:
        for head in requests_in(end, seen):
            if b"Content-Length" in head:
                length = int(head.split(b"Content-Length: ")[1].split(b"\r")[0])
                body = b""
                while len(body) < length:
                    body += end.recv(length - len(body))
                seen.requests.append(body)
            elif b"chunked" in head:
                seen.requests.append(read_until(end, b"0\r\n\r\n"))
            end.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    port, seen = crossings.serve(take_post)
    crossings.start("allowed.test", "127.0.0.1", names=NAMES)
    inner = get("denied.test")
    for post in (
        b"POST / HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: %d\r\n\r\n%s" % (len(inner), inner),
        b"POST / HTTP/1.1\r\nHost: allowed.test\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
        % (len(inner), inner),
    ):
        seen.requests.clear()
        client = crossings.connect("allowed.test", port)
        client.sendall(post)
        assert read_until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 204")
        client.sendall(get("allowed.test"))
        assert read_until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 204")
        client.sendall(get("denied.test"))
        assert refusal(read_all(client))["host"] == "denied.test"
        assert inner in seen.requests[1]
        assert len(seen.requests) == 3


H = b"GET / HTTP/1.1\r\nHost: allowed.test\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: allowed.test\r\nHost: allowed.test\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: allowed.test\r\nhost: denied.test\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : allowed.test\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost:\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: user@allowed.test\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: allowed.test, denied.test\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 2130706433\r\n\r\n",
        b"GET http://allowed.test@denied.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
        b"GET http://allowed.test\\@denied.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
        b"GET http://denied.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
        b"GET http://allowed.test/ HTTP/1.1\r\nHost: denied.test\r\n\r\n",
        b"GET https://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
        b"GET //denied.test HTTP/1.1\nHost: allowed.test\n\n",
        H + b"X: a\n\r\n",
        H + b"X: a\r b\r\n\r\n",
        H + b"X: a\0b\r\n\r\n",
        H + b" folded\r\n\r\n",
        H + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        H + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        H + b"Content-Length: +5\r\n\r\nhello",
        H + b"Content-Length: 5, 5\r\n\r\nhello",
        H + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        H + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        H + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        H + b"Transfer-Encoding: chunked\r\n\r\n5x\r\nhello\r\n0\r\n\r\n",
        H + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n",
        H + b"Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
        H + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX y\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
        b"GET /\tHTTP/1.1\r\nHost: allowed.test\r\n\r\n",
        b" GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
        b"GET / HTTP/1.1 \r\nHost: allowed.test\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: allowed.test\r\n\r\n",
        b"FOO / HTTP/0.9\r\nHost: denied.test\r\n\r\n",
        b"GET /\r\n",
        b"CONNECT allowed.test HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
        b"CONNECT denied.test:1\r\nHost: allowed.test HTTP/1.1\r\n\r\n",
        b"CONNECT denied.test:1\n.allowed.test:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT denied.test:1%0d%0a.allowed.test:1 HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
        b"CONNECT denied.test:1 .allowed.test:1 HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
        H + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
    ],
)
def test_request_that_can_be_read_in_two_ways_is_a_400(crossings: Crossings, data: bytes) -> None:
    port, seen = begin(crossings)
    client = crossings.connect("allowed.test", port)
    client.sendall(data)
    answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"] == "bad_request"
    assert not any(b"denied.test" in head for head in seen.requests)
    assert crossings.told("net.request", allowed=False)


def test_request_in_single_bytes_is_judged_before_its_end(crossings: Crossings) -> None:
    port, seen = begin(crossings)
    client = crossings.connect("allowed.test", port)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in b"BREW / HTTP/1.1\r\nHost: denied.test\r\n\r\n":
        client.send(bytes([byte]))
    assert refusal(read_all(client))["host"] == "denied.test"
    assert seen.requests == []
    client = crossings.connect("allowed.test", port)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in b"BREW / HTTP/1.1\r\nHost: allowed.test\r\n\r\n":
        client.send(bytes([byte]))
    assert read_until(client, b"BREW / HTTP/1.1").startswith(b"HTTP/1.1 200")


def test_old_request_without_host_goes_where_it_connected_to(crossings: Crossings) -> None:
    port, seen = begin(crossings)
    assert b"200 OK" in ask(crossings, port, b"GET / HTTP/1.0\r\n\r\n")
    assert len(seen.requests) == 1


def test_request_to_an_address_may_name_a_host_that_the_rules_allow(crossings: Crossings) -> None:
    port, seen = begin(crossings)
    assert b"200 OK" in ask(crossings, port, get("127.0.0.1"), host="127.0.0.1")
    assert b"200 OK" in ask(crossings, port, get("allowed.test"), host="127.0.0.1")
    assert refusal(ask(crossings, port, get("denied.test"), host="127.0.0.1"))["host"] == "denied.test"
    assert len(seen.requests) == 2


def test_expecting_client_gets_the_servers_go_ahead(crossings: Crossings) -> None:
    def expect(end: socket.socket, seen: Seen) -> None:
        for _ in requests_in(end, seen):
            end.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            seen.requests.append(end.recv(5))
            end.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    port, seen = crossings.serve(expect)
    crossings.start("allowed.test", "127.0.0.1", names=NAMES)
    client = crossings.connect("allowed.test", port)
    client.sendall(b"PUT / HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    assert read_until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 100")
    client.sendall(b"hello")
    assert read_until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 200")
    client.sendall(get("denied.test"))
    assert refusal(read_all(client))["host"] == "denied.test"
    assert seen.requests[1:] == [b"hello"]


def test_large_bodies_pass_and_the_next_request_is_judged(crossings: Crossings) -> None:
    size = 9_000_001

    def bulk(end: socket.socket, seen: Seen) -> None:
        for head in requests_in(end, seen):
            left = size if b"POST" in head else 0
            while left:
                left -= len(end.recv(left))
            if b"/chunked" in head:
                end.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for _ in range(9):
                    end.sendall(b"F4240\r\n" + b"y" * 1_000_000 + b"\r\n")
                end.sendall(b"1\r\ny\r\n0\r\n\r\n")
            else:
                end.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"y" * size)

    port, seen = crossings.serve(bulk)
    crossings.start("allowed.test", "127.0.0.1", names=NAMES)
    client = crossings.connect("allowed.test", port)
    connection = http.client.HTTPConnection("allowed.test", port)
    connection.sock = client
    for method, path in (("POST", "/"), ("POST", "/chunked"), ("GET", "/chunked")):
        connection.request(method, path, b"x" * size if method == "POST" else None)
        assert connection.getresponse().read() == b"y" * size
    client.sendall(get("denied.test"))
    assert refusal(read_all(client))["host"] == "denied.test"
    assert len(seen.requests) == 3


def test_upgraded_connection_is_a_tunnel_to_the_host_that_was_judged(crossings: Crossings) -> None:
    def upgrade(end: socket.socket, seen: Seen) -> None:
        next(requests_in(end, seen))
        end.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x00")
        echo_server(end, seen)

    port, seen = crossings.serve(upgrade)
    other_port, other = crossings.serve(http_server)
    crossings.start(f"allowed.test:{port}", "127.0.0.1", names=NAMES)
    client = crossings.connect("allowed.test", port)
    client.sendall(
        b"GET / HTTP/1.1\r\nHost: allowed.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
        + get("denied.test")
    )
    assert read_until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 101")
    assert client.recv(2) == b"\x81\x00"
    assert read_until(client, b"\r\n\r\n") == get("denied.test")
    client.sendall(b"\x81\x01a")
    assert client.recv(3) == b"\x81\x01a"
    assert seen.connections == 1
    assert (other_port, other.connections) == (other_port, 0)


def test_declined_upgrade_leaves_requests_that_are_judged(crossings: Crossings) -> None:
    port, seen = begin(crossings)
    client = crossings.connect("allowed.test", port)
    client.sendall(
        b"GET / HTTP/1.1\r\nHost: allowed.test\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n" + get("denied.test")
    )
    answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"policy_denied" in answer
    assert len(seen.requests) == 1


def proxy(end: socket.socket, seen: Seen) -> None:
    """Accepts every CONNECT and then echoes: what it connects to is nothing the gateway could see."""
    for head in requests_in(end, seen):
        if head.startswith(b"CONNECT"):
            end.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            echo_server(end, seen)
            return
        end.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nproxy")


def test_proxy_at_an_allowed_host_is_asked_only_for_what_the_rules_allow(crossings: Crossings) -> None:
    port, seen = crossings.serve(proxy)
    crossings.start(f"127.0.0.1:{port}", "target.test:443", "plain.test:80")
    for target in ("denied.test:443", "target.test:22", "127.0.0.1:22", "[::1]:443", "[::ffff:127.0.0.1]:443"):
        request = f"CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
        refusal(ask(crossings, port, request, host="127.0.0.1"))
    assert b"400" in ask(crossings, port, b"CONNECT 2130706433:443 HTTP/1.1\r\nHost: x\r\n\r\n", host="127.0.0.1")
    assert seen.requests == []
    assert refusal(
        ask(crossings, port, b"GET http://denied.test/ HTTP/1.1\r\nHost: denied.test\r\n\r\n", host="127.0.0.1")
    )
    plain = ask(crossings, port, b"GET http://plain.test/ HTTP/1.1\r\nHost: plain.test\r\n\r\n", host="127.0.0.1")
    assert plain.endswith(b"proxy")
    client = crossings.connect("127.0.0.1", port)
    client.sendall(b"CONNECT target.test:443 HTTP/1.1\r\nHost: target.test:443\r\n\r\n")
    assert read_until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 200")
    client.sendall(b"\x01raw")
    assert client.recv(4) == b"\x01raw"


def test_what_goes_through_a_proxy_must_fit_what_the_proxy_was_asked_for(crossings: Crossings) -> None:
    from tests.integration.egress.test_tls import client_hello

    port, seen = crossings.serve(proxy)
    crossings.start(f"127.0.0.1:{port}", "target.test:443")
    for data, sign in ((client_hello("denied.test"), b"\x15\x03\x03"), (get("denied.test"), b"HTTP/1.1 403")):
        client = crossings.connect("127.0.0.1", port)
        client.sendall(b"CONNECT target.test:443 HTTP/1.1\r\nHost: target.test:443\r\n\r\n")
        read_until(client, b"\r\n\r\n")
        client.sendall(data)
        assert read_all(client).startswith(sign)
    assert all(head.startswith(b"CONNECT") for head in seen.requests)
    client = crossings.connect("127.0.0.1", port)
    client.sendall(b"CONNECT target.test:443 HTTP/1.1\r\nHost: target.test:443\r\n\r\n" + client_hello("target.test"))
    assert read_until(client, b"\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert client.recv(3) == b"\x16\x03\x01"


def test_server_that_is_not_there_is_a_502_that_says_so(crossings: Crossings) -> None:
    crossings.start("allowed.test", "127.0.0.1", names=NAMES)
    with port_that_refuses() as port:
        answer = ask(crossings, port, get("allowed.test"))
    assert answer.startswith(b"HTTP/1.1 502 ")
    body = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert (body["error"], body["host"], body["retry"]) == ("unreachable", "allowed.test", True)


def test_answer_without_a_known_end_passes_and_ends_the_connection(crossings: Crossings) -> None:
    def stream(end: socket.socket, seen: Seen) -> None:
        next(requests_in(end, seen))
        end.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        for _ in range(200):
            end.sendall(b"z" * 10_000)

    port, _ = crossings.serve(stream)
    crossings.start("allowed.test", "127.0.0.1", names=NAMES)
    client = crossings.connect("allowed.test", port)
    client.sendall(get("allowed.test"))
    assert read_all(client).endswith(b"\r\n\r\n" + b"z" * 2_000_000)


def test_answer_without_a_known_end_is_whole_though_what_follows_is_denied(crossings: Crossings) -> None:
    go = threading.Event()

    def stream(end: socket.socket, seen: Seen) -> None:
        next(requests_in(end, seen))
        end.sendall(b"HTTP/1.0 200 OK\r\n\r\nbegin")
        go.wait(20)
        end.sendall(b"end")

    port, _ = crossings.serve(stream)
    crossings.start("allowed.test", "127.0.0.1", names=NAMES)
    client = crossings.connect("allowed.test", port)
    client.sendall(get("allowed.test"))
    assert read_until(client, b"begin").endswith(b"begin")
    client.sendall(get("denied.test"))
    crossings.wait_for(lambda: crossings.told("net.request", allowed=False))
    go.set()
    assert read_all(client) == b"end"


def test_server_that_does_not_speak_http_is_still_heard(crossings: Crossings) -> None:
    def odd(end: socket.socket, seen: Seen) -> None:
        next(requests_in(end, seen))
        end.sendall(b"what?")
        seen.requests.append(read_all(end))

    port, _ = crossings.serve(odd)
    crossings.start("allowed.test", "127.0.0.1", names=NAMES)
    client = crossings.connect("allowed.test", port)
    client.sendall(get("allowed.test"))
    assert client.recv(5) == b"what?"


def test_http2_in_clear_is_a_tunnel_to_the_host_that_was_judged(crossings: Crossings) -> None:
    port, _ = crossings.serve(echo_server)
    crossings.start("allowed.test", "127.0.0.1", names=NAMES)
    client = crossings.connect("allowed.test", port)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    client.sendall(preface)
    assert read_until(client, b"SM\r\n\r\n") == preface


def test_client_that_sends_a_large_body_can_still_read_why_it_was_refused(crossings: Crossings) -> None:
    port, _ = begin(crossings)
    client = crossings.connect("allowed.test", port)
    sender = threading.Thread(
        target=_send,
        args=(client, b"POST / HTTP/1.1\r\nHost: denied.test\r\nContent-Length: 800000\r\n\r\n" + b"x" * 800_000),
    )
    sender.start()
    assert refusal(read_all(client))["host"] == "denied.test"
    sender.join()


def _send(end: socket.socket, data: bytes) -> None:
    try:
        end.sendall(data)
    except OSError:
        return


def test_head_that_does_not_go_on_is_answered_with_a_408(crossings: Crossings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossing, "HEAD_SECONDS", 0.05)
    port, seen = begin(crossings)
    client = crossings.connect("allowed.test", port)
    client.sendall(get("allowed.test") + b"GET / HTTP/1.1\r\nHost")
    answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in answer
    assert len(seen.requests) == 1


@pytest.mark.parametrize("size", [300_000, 12_000_000])
def test_refusal_comes_after_the_whole_answer_also_for_a_slow_reader(crossings: Crossings, size: int) -> None:
    def answer_large(end: socket.socket, seen: Seen) -> None:
        for _ in requests_in(end, seen):
            end.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"y" * size)

    port, seen = crossings.serve(answer_large)
    crossings.start("allowed.test", "127.0.0.1", names=NAMES)
    client = crossings.connect("allowed.test", port)
    client.sendall(get("allowed.test") + get("denied.test"))
    crossings.wait_for(lambda: any(relay.down.stuck or relay.down.moved >= size for relay in crossings.gateway._open))
    answer = read_all(client)
    body = answer.partition(b"\r\n\r\n")[2]
    assert body[:size] == b"y" * size
    assert refusal(body[size:])["host"] == "denied.test"
    assert len(seen.requests) == 1
