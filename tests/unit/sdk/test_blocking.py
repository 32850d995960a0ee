# SPDX-License-Identifier: MIT
"""Requests that the calling thread waits for, against a server of the test that does what it is told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from agentbox.sdk.blocking import BlockingTransport
from agentbox.sdk.errors import AgentboxHTTPError, LostConnectionError, NoServerError

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ntrue"


class Peer:
    """A server that gives its answers in their order, one connection after another; None hangs up without a word."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.requests: list[bytes] = []
        self.connections = 0
        self.answers: list[bytes | None] = []
        self.closes = False
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            with sock:
                while self._answer(sock):
                    pass
            self.closed.set()

    def _answer(self, sock: socket.socket) -> bool:
        data = b""
        while b"\r\n\r\n" not in data or not data.endswith(b"}"):
            piece = sock.recv(1 << 16)
            if not piece:
                return False
            data += piece
        self.requests.append(data)
        answer = self.answers.pop(0) if self.answers else OK
        if answer is not None:
            sock.sendall(answer)
        return answer is not None and not self.closes

    def end(self) -> None:
        """No more connections."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.end()


@pytest.fixture
def transport(peer: Peer) -> Iterator[BlockingTransport]:
    made = BlockingTransport(peer.url, "key")
    yield made
    made.close()


def test_requests_go_over_one_kept_connection_with_the_key(peer: Peer, transport: BlockingTransport) -> None:
    assert [transport.post("/x", {"a": 1}, 10), transport.post("/x", {"a": 2}, 10)] == [True, True]
    assert peer.connections == 1
    assert peer.requests[0].startswith(b"POST /x HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer key\r\n" in peer.requests[0]
    assert peer.requests[1].endswith(b'\r\ncontent-length: 7\r\n\r\n{"a":2}')


def test_a_connection_that_the_server_has_closed_is_not_used_again(peer: Peer, transport: BlockingTransport) -> None:
    peer.closes = True
    transport.post("/x", {}, 10)
    assert peer.closed.wait(10)
    assert transport.post("/x", {}, 10) is True
    assert peer.connections == 2


def test_a_request_that_gets_no_answer_is_not_made_twice(peer: Peer, transport: BlockingTransport) -> None:
    peer.answers = [None]
    with pytest.raises(LostConnectionError) as caught:
        transport.post("/x", {}, 10)
    assert caught.value.untouched
    assert len(peer.requests) == 1


def test_a_refusal_says_what_the_server_said_and_leaves_the_connection(
    peer: Peer, transport: BlockingTransport
) -> None:
    body = b'{"detail": "no", "code": "nope"}'
    peer.answers = [b"HTTP/1.1 409 Conflict\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)]
    with pytest.raises(AgentboxHTTPError) as caught:
        transport.post("/x", {}, 10)
    assert (caught.value.status, caught.value.code) == (409, "nope")
    assert transport.post("/x", {}, 10) is True
    assert peer.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[1\r\n3;x=y\r\n,2]\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n[1,2]",
    ],
    ids=["in chunks", "after 100"],
)
def test_an_answer_is_read_whole(answer: bytes, peer: Peer, transport: BlockingTransport) -> None:
    peer.answers = [answer]
    assert transport.post("/x", {}, 10) == [1, 2]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ntrue",
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000,
    ],
    ids=["cut off", "another protocol", "no end"],
)
def test_an_answer_that_is_none_is_a_lost_one(answer: bytes, peer: Peer, transport: BlockingTransport) -> None:
    peer.answers, peer.closes = [answer], True
    with pytest.raises(LostConnectionError):
        transport.post("/x", {}, 10)


def test_an_answer_that_does_not_come_in_time_is_a_timeout(peer: Peer, transport: BlockingTransport) -> None:
    peer.answers = [b"HTTP/1.1 200 OK\r\n"]
    with pytest.raises(TimeoutError):
        transport.post("/x", {}, 0.01)


def test_where_nobody_listens_there_is_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(NoServerError, match="refused"):
        BlockingTransport(f"http://127.0.0.1:{port}").post("/x", {}, 10)


def test_threads_that_ask_at_once_get_the_answer_to_what_they_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def echo(sock: socket.socket) -> None:
            with sock:
                while data := sock.recv(1 << 16):
                    body = data.rpartition(b"\r\n\r\n")[2]
                    sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

        def serve(count: int) -> None:
            for _ in range(count):
                threading.Thread(target=echo, args=(listener.accept()[0],)).start()

        transport = BlockingTransport(f"http://127.0.0.1:{listener.getsockname()[1]}")
        together = threading.Barrier(4)
        said: dict[int, list[object]] = {}
        _beside([lambda: serve(4), *(_asking(transport, number, together, said) for number in range(4))])
        transport.close()
    assert said == {number: [{"n": number}] * 10 for number in range(4)}


def _asking(
    transport: BlockingTransport, number: int, together: threading.Barrier, said: dict[int, list[object]]
) -> Callable[[], None]:
    def ask() -> None:
        sockets = [transport._open()]
        together.wait()
        # Each holds a connection first, so that there are as many as threads.
        transport._idle.append((sockets.pop(), float("inf")))
        together.wait()
        said[number] = [transport.post("/x", {"n": number}, 10) for _ in range(10)]

    return ask


def _beside(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
