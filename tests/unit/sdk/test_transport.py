# SPDX-License-Identifier: MIT
"""Requests over kept connections, against a server of the test that misbehaves as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from agentbox.sdk.errors import AgentboxHTTPError, LostConnectionError, NoServerError
from agentbox.sdk.http1 import Origin
from agentbox.sdk.transport import Transport

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ntrue"


class Peer:
    """What the server of a test sees and does. `answers` has a function for each connection, in their order; the last
    one goes on."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.answers: list[Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]] = [self.well]

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """One request, whose body has a length."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(x[15:]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")), 0)
        body = await reader.readexactly(length)
        self.requests.append(head + body)
        return head + body

    async def well(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer every request."""
        while True:
            await self.request(reader)
            writer.write(OK)

    async def once(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, take the next, and hang up without a word."""
        await self.request(reader)
        writer.write(OK)
        await self.request(reader)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        answer = self.answers[min(self.connections, len(self.answers) - 1)]
        self.connections += 1
        try:
            await answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def talking(peer: Peer) -> AsyncIterator[Transport]:
    """A client of such a server."""
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = Transport(f"http://127.0.0.1:{port}", "key")
    try:
        yield transport
    finally:
        await transport.close()
        server.close()


async def ask(transport: Transport, method: str = "GET", path: str = "/x", **how: object) -> object:
    async with transport.open(method, path, **how) as answer:  # type: ignore[arg-type]
        return await answer.json()


async def test_requests_share_a_connection_and_carry_key_and_host() -> None:
    peer = Peer()
    async with talking(peer) as transport:
        for _ in range(3):
            assert await ask(transport, "POST", value={"a": "\udcff"}) is True
    assert peer.connections == 1
    assert b"\r\nAuthorization: Bearer key\r\n" in peer.requests[0]
    assert b"\r\nHost: 127.0.0.1:" in peer.requests[0]
    assert peer.requests[0].endswith(b'{"a":"\\udcff"}')


async def test_a_request_that_changes_something_is_never_made_twice() -> None:
    peer = Peer()
    peer.answers = [peer.once, peer.well]
    async with talking(peer) as transport:
        await ask(transport, "POST", value={})
        with pytest.raises(LostConnectionError):
            await ask(transport, "POST", value={})
        assert len(peer.requests) == 2
        assert await ask(transport, "POST", value={}) is True
    assert peer.connections == 2


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_a_request_that_changes_nothing_is_made_again_on_a_new_connection(method: str) -> None:
    peer = Peer()
    peer.answers = [peer.once, peer.well]
    async with talking(peer) as transport:
        await ask(transport)
        assert await ask(transport, method, body=b"" if method == "PUT" else None) is True
    assert (peer.connections, len(peer.requests)) == (2, 3)


async def test_a_connection_that_the_server_closed_is_not_used_for_anything() -> None:
    peer = Peer()

    async def close_after_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.request(reader)
        writer.write(OK)
        await writer.drain()

    peer.answers = [close_after_one, peer.well]
    async with talking(peer) as transport:
        await ask(transport)
        # Its end has arrived when the other side of another connection has answered after it.
        other = Transport(transport.url)
        await ask(other)
        await other.close()
        assert await ask(transport, "POST", value={}) is True
    assert len(peer.requests) == 3


async def test_an_answer_that_is_not_read_to_its_end_costs_its_connection() -> None:
    peer = Peer()
    async with talking(peer) as transport:
        async with transport.open("GET", "/x") as answer:
            assert answer.status == 200
        assert await ask(transport) is True
    assert peer.connections == 2


async def test_pieces_of_a_body_are_sent_as_they_come_and_counted_where_their_length_is_known() -> None:
    seen = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        seen.append((head, await reader.readuntil(b"0\r\n\r\n" if b"chunked" in head else b"end")))
        writer.write(OK)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        yield b""
        yield b" end"

    peer = Peer()
    peer.answers = [take]
    async with talking(peer) as transport:
        assert await ask(transport, "PUT", body=pieces()) is True
        assert await ask(transport, "PUT", body=pieces(), length=7) is True
    assert seen[0][1] == b"3\r\none\r\n4\r\n end\r\n0\r\n\r\n"
    assert b"content-length: 7\r\n" in seen[1][0]
    assert seen[1][1] == b"one end"


async def test_a_server_that_refuses_a_body_is_heard_before_the_body_is_through() -> None:
    body = b'{"detail":"No space","code":"file_error","errno":"ENOSPC"}'

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 507 Insufficient Storage\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        # Not one byte more is read, nor is the connection closed, until the client has gone.
        await asyncio.wait_for(gone.wait(), 30)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 18)

    gone = asyncio.Event()
    peer = Peer()
    peer.answers = [refuse]
    async with talking(peer) as transport:
        with pytest.raises(AgentboxHTTPError) as caught:
            await ask(transport, "PUT", body=endless())
        gone.set()
    assert (caught.value.status, caught.value.code) == (507, "file_error")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\ntru",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\ntrue\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70000 + b"\r\n\r\n",
    ],
)
async def test_an_answer_that_is_broken_is_a_lost_connection(answer: bytes) -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.request(reader)
        writer.write(answer)

    peer = Peer()
    peer.answers = [broken]
    async with talking(peer) as transport:
        with pytest.raises(LostConnectionError):
            await ask(transport)
    # Something of an answer came: it is not asked again.
    assert len(peer.requests) == 1


async def test_bodies_of_every_framing_are_read() -> None:
    answers = [
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ntrue",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\ntr\r\n2\r\nue\r\n0\r\ntrailer: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\ntrue",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ]

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await peer.request(reader)
        writer.write(answers[peer.connections - 1])

    peer = Peer()
    peer.answers = [send]
    found = []
    async with talking(peer) as transport:
        for _ in answers:
            found.append(await ask(transport))
            transport._drop_idle()
    assert found == [True, True, True, None]


async def test_nobody_who_listens_is_a_server_that_is_not_there() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(NoServerError, match="refused"):
        await ask(Transport(f"http://127.0.0.1:{port}"))


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://a", "http://", "http://a/?x=1", "http://user:pw@a"])
def test_what_is_no_address_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Origin.of(url)


def test_an_address_may_have_a_path_and_be_of_version_6() -> None:
    origin = Origin.of("http://[::1]:8080/below/")
    assert (origin.host, origin.authority, origin.path) == ("::1", "[::1]:8080", "/below")
    assert Origin.of("https://a.example").authority == "a.example"
