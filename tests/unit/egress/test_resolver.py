# SPDX-License-Identifier: MIT
"""A box's name server at real sockets, with a real name server behind it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from agentbox.egress.events import EgressEvent
from agentbox.egress.names import SyntheticNames
from agentbox.egress.resolver import Limits, Resolver
from agentbox.egress.rules import EgressRules
from agentbox.egress.upstream import Upstream
from agentbox.policy.parser import parse
from tests.unit.egress.name_server import AAAA, A, NameServer, Said, Seen, message, seen

FORMERR, SERVFAIL, NXDOMAIN, NOTIMP = 1, 2, 3, 4


@dataclass
class Box:
    """A resolver at two sockets, and what it tells."""

    upstream: NameServer
    resolver: Resolver
    datagrams: socket.socket
    streams: socket.socket
    rules: list[EgressRules]
    events: list[EgressEvent] = field(default_factory=list)

    def client(self) -> socket.socket:
        """A socket that sends datagrams to the resolver."""
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        sock.connect(self.datagrams.getsockname())
        return sock

    async def ask(self, data: bytes) -> Seen:
        """Ask by datagram."""
        with self.client() as sock:
            sock.send(data)
            return seen(await asyncio.get_running_loop().sock_recv(sock, 65535))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect by TCP."""
        return await asyncio.open_connection(*self.streams.getsockname())


def framed(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


async def overwhelm(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Ask for as long as there are answers."""
    while True:
        writer.write(framed(message("evil.test")))
        await writer.drain()
        await received(reader)


async def only_ask(sock: socket.socket) -> None:
    """Ask for as long as somebody reads."""
    while True:
        await asyncio.get_running_loop().sock_sendall(sock, framed(message("evil.test")) * 100)


async def received(reader: asyncio.StreamReader) -> Seen:
    (length,) = struct.unpack(">H", await reader.readexactly(2))
    return seen(await reader.readexactly(length))


Make = Callable[..., "asyncio.Future[Box]"]


@pytest.fixture
async def box() -> AsyncIterator[Callable[..., object]]:
    async with AsyncExitStack() as stack:

        async def make(text: str = "net: *.allowed.test", said: Said | None = None, **limits: float) -> Box:
            answer = said or Said(("93.184.216.34", "2606:2800:220:1::1"))
            server = await stack.enter_async_context(NameServer(lambda name, qtype: answer))
            upstream = Upstream(server.address)
            stack.push_async_callback(upstream.close)
            rules = [EgressRules.of(parse(text, root="/"))]
            events: list[EgressEvent] = []
            resolver = Resolver(lambda: rules[-1], SyntheticNames(), upstream, events.append, Limits(**limits))  # type: ignore[arg-type]
            streams = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
            datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            datagrams.bind(("127.0.0.1", 0))
            resolver.serve_udp(datagrams)
            resolver.serve_tcp(streams)
            stack.push_async_callback(resolver.close)
            return Box(server, resolver, datagrams, streams, rules, events)

        yield make


async def test_allowed_name_is_answered_by_datagram_and_by_stream(box: Make) -> None:
    one = await box()
    by_datagram = await one.ask(message("www.allowed.test"))
    reader, writer = await one.connect()
    writer.write(framed(message("WWW.allowed.test")))
    by_stream = await received(reader)
    assert by_datagram.addresses == by_stream.addresses
    assert len(by_stream.addresses) == 1
    writer.close()


async def test_name_that_no_rule_allows_reaches_no_other_name_server(box: Make) -> None:
    one = await box()
    secret = "c2VjcmV0" * 4
    for qtype in (A, AAAA, 16, 255, 65, 5, 12, 252):
        for name in (f"{secret}.evil.test", f"{secret}.allowed.test.evil.test", "allowed.test", secret):
            assert (await one.ask(message(name, qtype))).code in (NXDOMAIN, 5)
    assert (await one.ask(message("x.allowed.test", 16))).code == 0
    assert one.upstream.asked == []
    await one.ask(message("x.allowed.test"))
    assert {name.lower() for name, _ in one.upstream.asked} == {"x.allowed.test"}


async def test_change_of_the_rules_holds_from_the_next_question_on(box: Make) -> None:
    one = await box()
    assert (await one.ask(message("a.allowed.test"))).code == 0
    one.rules.append(EgressRules.of(parse("net: other.test", root="/")))
    assert (await one.ask(message("a.allowed.test"))).code == NXDOMAIN
    assert (await one.ask(message("other.test"))).code == 0


async def test_flood_of_denials_is_counted_and_told_in_few_events(box: Make) -> None:
    one = await box(pause_seconds=0)
    for _ in range(500):
        await one.ask(message("evil.test"))
    for number in range(3000):
        await one.resolver.answer(message(f"{number}.evil.test"))
    assert len(one.events) < 600
    await one.resolver.close()
    denied = [event for event in one.events if not event.allowed]
    assert sum(event.count for event in denied) == 3500
    assert len(denied) < 600


async def test_unreadable_and_strange_datagrams_do_not_stop_the_answers(box: Make) -> None:
    one = await box()
    with one.client() as sock:
        for data in (b"", b"\0", b"\xff" * 65000, message("a.test", flags=0x8180), b"\0" * 12):
            sock.send(data)
    assert (await one.ask(message("evil.test"))).code == NXDOMAIN
    assert (await one.ask(message("evil.test", flags=0x2800))).code == NOTIMP
    assert (await one.ask(message("evil.test") + b"\0" * 5000)).code == FORMERR


async def test_asker_that_has_gone_harms_nobody(box: Make) -> None:
    one = await box()
    for _ in range(20):
        with one.client() as sock:
            sock.send(message("evil.test"))
    assert (await one.ask(message("evil.test"))).code == NXDOMAIN


async def test_more_datagrams_than_are_read_at_once_are_all_answered(box: Make) -> None:
    one = await box(at_once=4, pause_seconds=0.001)
    loop = asyncio.get_running_loop()
    with one.client() as sock:
        for ident in range(50):
            sock.send(message("evil.test", ident=ident))
        answers = [await loop.sock_recv(sock, 4096) for _ in range(50)]
    assert [struct.unpack_from(">H", answer)[0] for answer in answers] == list(range(50))


async def test_questions_that_wait_for_the_upstream_are_bounded_and_others_are_answered(box: Make) -> None:
    one = await box(waiting=5, asking=2)
    gate = asyncio.Event()
    one.upstream.gate = gate.wait
    asking = [asyncio.create_task(one.ask(message(f"{number}.allowed.test"))) for number in range(30)]
    done: set[asyncio.Task[Seen]] = set()
    while len(done) < 25:
        done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0)
    assert {task.result().code for task in done} == {SERVFAIL}
    while len(one.upstream.asked) < 4:
        await asyncio.sleep(0)
    assert (await one.ask(message("evil.test"))).code == NXDOMAIN
    assert (await one.ask(message("localhost"))).code == 0
    gate.set()
    answers = await asyncio.gather(*asking)
    assert [answer.code for answer in answers].count(0) == 5
    assert len(one.upstream.asked) == 10


async def test_question_that_waits_too_long_behind_others_fails(box: Make) -> None:
    one = await box(asking=1, waiting_seconds=0.05)
    one.upstream.gate = asyncio.Event().wait
    answers = await asyncio.gather(*(one.ask(message(f"{n}.allowed.test", edns=1232)) for n in range(3)))
    assert {answer.code for answer in answers} == {SERVFAIL}
    assert {answer.extended for answer in answers} == {(22, "too many questions of this box came before it")}


async def test_many_questions_come_over_one_connection_in_any_pieces(box: Make) -> None:
    one = await box()
    reader, writer = await one.connect()
    stream = b"".join(framed(message(f"{number}.evil.test", ident=number)) for number in range(40))
    for at in range(0, len(stream), 7):
        writer.write(stream[at : at + 7])
        await writer.drain()
    for number in range(40):
        (length,) = struct.unpack(">H", await reader.readexactly(2))
        answer = await reader.readexactly(length)
        assert struct.unpack_from(">H", answer)[0] == number
        assert seen(answer).code == NXDOMAIN
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\0", id="half a length"),
        pytest.param(b"\0\0", id="nothing"),
        pytest.param(framed(b"x"), id="less than a header"),
        pytest.param(framed(message("a.test", flags=0x8180)), id="an answer"),
        pytest.param(b"\xff\xff" + b"\0" * 100, id="less than was promised"),
    ],
)
async def test_connection_that_says_nothing_sensible_is_ended(box: Make, data: bytes) -> None:
    one = await box()
    reader, writer = await one.connect()
    writer.write(data)
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()


async def test_message_too_long_for_a_question_is_refused_without_being_read_whole(box: Make) -> None:
    one = await box()
    reader, writer = await one.connect()
    writer.write(b"\xff\xff" + message("a.test").ljust(4097, b"\0"))
    assert (await received(reader)).code == FORMERR
    assert await reader.read() == b""
    writer.close()


async def test_slow_connection_is_ended(box: Make) -> None:
    one = await box(message_seconds=0.05)
    reader, writer = await one.connect()
    writer.write(framed(message("evil.test"))[:5])
    assert await reader.read() == b""
    writer.close()


async def test_connection_ends_however_busy_it_is(box: Make) -> None:
    one = await box(connection_seconds=0.05)
    reader, writer = await one.connect()
    with pytest.raises((EOFError, ConnectionError)):
        await overwhelm(reader, writer)
    writer.close()


async def test_client_that_reads_no_answers_is_ended(box: Make) -> None:
    one = await box(message_seconds=0.1)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        sock.connect(one.streams.getsockname())
        sock.setblocking(False)
        with pytest.raises(ConnectionError):
            await only_ask(sock)


async def test_number_of_connections_is_bounded_and_the_next_waits_for_its_turn(box: Make) -> None:
    one = await box(connections=2)
    open_ones = [await one.connect() for _ in range(2)]
    for reader, writer in open_ones:
        writer.write(framed(message("evil.test")))
        await received(reader)
    reader, writer = await one.connect()
    writer.write(framed(message("evil.test")))
    turn = asyncio.create_task(received(reader))
    for _ in range(20):
        await one.ask(message("evil.test"))
    assert not turn.done()
    open_ones[0][1].close()
    assert (await turn).code == NXDOMAIN
    for _, other in (*open_ones, (reader, writer)):
        other.close()


async def test_connection_waits_while_the_host_has_no_descriptor_left(box: Make) -> None:
    one = await box()
    loop = asyncio.get_running_loop()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    with socket.socket() as sock:
        sock.setblocking(False)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 2, hard))
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.dup(sock.fileno()))
            await loop.sock_connect(sock, one.streams.getsockname())
            await loop.sock_sendall(sock, framed(message("evil.test")))
            for _ in range(50):
                await one.resolver.answer(message("evil.test"))
                await asyncio.sleep(0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in taken:
                os.close(descriptor)
        assert len(await loop.sock_recv(sock, 2)) == 2


async def test_closing_ends_everything_and_leaves_the_sockets_to_their_owner(box: Make) -> None:
    one = await box()
    one.upstream.gate = asyncio.Event().wait
    reader, writer = await one.connect()
    writer.write(framed(message("a.allowed.test")))
    waiting = asyncio.create_task(one.ask(message("b.allowed.test")))
    while len(one.upstream.asked) < 4:
        await asyncio.sleep(0)
    await one.resolver.close()
    assert await reader.read() == b""
    writer.close()
    with one.client() as sock:
        sock.send(message("evil.test"))
        assert one.datagrams.recv(4096) == message("evil.test")
    waiting.cancel()
    assert os.fstat(one.streams.fileno())
