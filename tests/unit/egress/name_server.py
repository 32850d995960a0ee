# SPDX-License-Identifier: MIT
"""A real name server on this machine's loopback for tests, written apart from the code under test.

It answers as its `answer` function says and remembers every question that reached it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType

from tests.ports import DATAGRAM, IPV4, STREAM, sockets_at_one_port

A, CNAME, AAAA = 1, 5, 28


@dataclass(frozen=True)
class Said:
    """What the server says: addresses or an alias in front of them, a code, or nothing at all when `silent`."""

    addresses: tuple[str, ...] = ()
    alias: str = ""
    code: int = 0
    ttl: int = 60
    silent: bool = False
    truncated: bool = False
    lower_case: bool = False
    forged_first: int = 0
    only_with_edns: bool | None = None


Answer = Callable[[str, int], Said]


@dataclass
class NameServer:
    """Use as `async with NameServer(answer) as server:`."""

    answer: Answer
    asked: list[tuple[str, int]] = field(default_factory=list)
    ports_asked_from: list[int] = field(default_factory=list)
    over_tcp: int = 0
    gate: Callable[[], Awaitable[object]] | None = None
    port: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> NameServer:
        loop = asyncio.get_running_loop()
        listener, self._sock = sockets_at_one_port((IPV4, STREAM), (IPV4, DATAGRAM))
        self._stream = await asyncio.start_server(self._serve_stream, sock=listener)
        self.port = listener.getsockname()[1]
        self._sock.setblocking(False)
        self._running: set[asyncio.Task[None]] = set()
        loop.add_reader(self._sock, self._read_datagram)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.get_running_loop().remove_reader(self._sock)
        for task in self._running:
            task.cancel()
        self._stream.close()
        self._sock.close()

    def _read_datagram(self) -> None:
        message, asker = self._sock.recvfrom(65535)
        self.ports_asked_from.append(asker[1])
        task = asyncio.get_running_loop().create_task(self._answer_datagram(message, asker))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer_datagram(self, message: bytes, asker: tuple[str, int]) -> None:
        name, qtype = question(message)
        self.asked.append((name, qtype))
        if self.gate is not None:
            await self.gate()
        said = self.answer(name.lower(), qtype)
        for _ in range(said.forged_first):
            forged = bytearray(reply(message, Said(("6.6.6.6",)), truncated=False))
            forged[0] ^= 0xFF
            self._sock.sendto(forged, asker)
        if not said.silent:
            self._sock.sendto(reply(message, said, truncated=said.truncated), asker)

    async def _serve_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.over_tcp += 1
        (length,) = struct.unpack(">H", await reader.readexactly(2))
        message = await reader.readexactly(length)
        name, qtype = question(message)
        self.asked.append((name, qtype))
        answer = reply(message, self.answer(name.lower(), qtype), truncated=False)
        writer.write(struct.pack(">H", len(answer)) + answer)
        await writer.drain()
        writer.close()


def wire(name: str) -> bytes:
    """A name as its labels."""
    return b"".join(bytes((len(part),)) + part.encode() for part in name.split(".") if part) + b"\0"


def message(
    name: str | bytes,
    qtype: int = A,
    *,
    ident: int = 7,
    qclass: int = 1,
    flags: int = 0x0100,
    counts: tuple[int, int, int] = (1, 0, 0),
    edns: int | None = None,
    edns_version: int = 0,
    after: bytes = b"",
) -> bytes:
    """A question, written by hand; `edns` is the size of datagrams that its sender takes."""
    question_bytes = (wire(name) if isinstance(name, str) else name) + struct.pack(">HH", qtype, qclass)
    extra = b"" if edns is None else b"\0" + struct.pack(">HHBBHH", 41, edns, 0, edns_version, 0, 0)
    additional = (edns is not None) + bool(after)
    return struct.pack(">HHHHHH", ident, flags, *counts, additional) + question_bytes + extra + after


def question(received: bytes) -> tuple[str, int]:
    """Name and type in a message."""
    labels, at = [], 12
    while received[at]:
        labels.append(received[at + 1 : at + 1 + received[at]].decode())
        at += 1 + received[at]
    return ".".join(labels), struct.unpack_from(">H", received, at + 1)[0]


@dataclass(frozen=True)
class Seen:
    """An answer, taken apart by hand."""

    code: int
    truncated: bool
    addresses: tuple[str, ...]
    pointers: tuple[str, ...]
    ttls: tuple[int, ...]
    question: bytes
    edns_bytes: int | None
    extended: tuple[int, str] | None
    flags: int


def seen(answer: bytes | None) -> Seen:
    """What an answer of ours says. Fails for one that is not well formed."""
    assert answer is not None
    _, flags, questions, answers, authority, additional = struct.unpack_from(">HHHHHH", answer)
    assert flags & 0x8000
    assert authority == 0
    at = 12
    if questions:
        while answer[at]:
            at += 1 + answer[at]
        at += 5
    asked = answer[12:at]
    code, addresses, pointers, ttls, edns_bytes, extended = flags & 0xF, [], [], [], None, None
    for number in range(answers + additional):
        if number < answers:
            assert answer[at : at + 2] == b"\xc0\x0c"
            at += 2
        else:
            assert answer[at] == 0
            at += 1
        rtype, rclass, ttl, length = struct.unpack_from(">HHIH", answer, at)
        at += 10
        data = answer[at : at + length]
        assert len(data) == length
        at += length
        if rtype == 41:
            edns_bytes = rclass
            code |= ttl >> 24 << 4
            while data:
                option, size = struct.unpack_from(">HH", data)
                if option == 15:
                    extended = (struct.unpack_from(">H", data, 4)[0], data[6 : 4 + size].decode())
                data = data[4 + size :]
        else:
            ttls.append(ttl)
            if rtype in (A, AAAA):
                addresses.append(str(ipaddress.ip_address(data)))
            else:
                pointers.append(question(bytes(12) + data + b"\0\0")[0])
    assert at == len(answer)
    return Seen(
        code, bool(flags & 0x200), tuple(addresses), tuple(pointers), tuple(ttls), asked, edns_bytes, extended, flags
    )


def reply(asked: bytes, said: Said, *, truncated: bool) -> bytes:
    """An answer to a question, with the alias before the addresses."""
    name, qtype = question(asked)
    code, addresses = said.code, said.addresses
    if said.only_with_edns is not None and said.only_with_edns != (asked[11] > 0):
        code, addresses = 1, ()
    question_bytes = asked[12 : 12 + len(wire(name)) + 4]
    if said.lower_case:
        question_bytes = wire(name.lower()) + question_bytes[-4:]
    records = []
    owner = b"\xc0\x0c"
    if said.alias:
        target = wire(said.alias)
        records.append(owner + struct.pack(">HHIH", CNAME, 1, said.ttl, len(target)) + target)
        owner = target
    if not truncated:
        wanted = [found for found in map(ipaddress.ip_address, addresses) if (found.version == 4) == (qtype == A)]
        head = owner + struct.pack(">HHI", qtype, 1, said.ttl)
        records += [head + struct.pack(">H", len(found.packed)) + found.packed for found in wanted]
    flags = 0x8180 | code | (0x200 if truncated else 0)
    return asked[:2] + struct.pack(">HHHHH", flags, 1, len(records), 0, 0) + question_bytes + b"".join(records)
