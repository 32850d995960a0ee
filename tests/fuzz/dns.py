# SPDX-License-Identifier: MIT
"""Messages of the domain name system, as a guest and as a name server may send them."""

from __future__ import annotations

import ipaddress
import struct

from agentbox.egress import dns, dns_reply
from agentbox.egress.dns import Answer, Code, Edns, ErrorInfo, ExtendedError, Query, Unusable
from tests.fuzz.target import Target


def _check_query(data: bytes) -> None:
    read = dns.read_query(data)
    if read is None:
        assert len(data) < dns.HEADER.size or data[2] & 0x80
        return
    assert read.question in data
    error = ExtendedError(ErrorInfo.BLOCKED, "x" * 300)
    answers = [Answer(dns.TYPE_A, 30, b"\x7f\0\0\1")] * 3
    code = read.code if isinstance(read, Unusable) else Code.NXDOMAIN
    answer = dns.write_answer(read, code, answers, error)
    assert len(answer) <= dns.datagram_bytes(read.edns)
    assert answer[:2] == data[:2]
    assert answer[2] & 0x80
    assert answer[12 : 12 + len(read.question)] == read.question
    assert dns.read_query(answer) is None
    if isinstance(read, Query):
        assert read.name.isascii()
        assert read.name.isprintable()
        assert " " not in read.name
        assert len(read.labels) == 0 or read.name.count(".") == len(read.labels) - 1
        # The same question, written by us, is the same question.
        again = dns.read_query(data[:4] + b"\0\1\0\0\0\0\0\0" + read.question)
        assert isinstance(again, Query)
        assert again.labels == read.labels


_ASKED = dns_reply.ask(0x1234, "aLlowed.example.Com", dns.TYPE_A)
_ASKED_SIX = dns_reply.ask(0x1234, "aLlowed.example.Com", dns.TYPE_AAAA)


def _check_reply(data: bytes) -> None:
    for asked, version in ((_ASKED, 4), (_ASKED_SIX, 6)):
        reply = dns_reply.read_reply(data, asked)
        if dns_reply.lost_case(data, asked):
            assert reply is None or not reply.addresses
        if reply is None:
            continue
        assert data[:2] == b"\x12\x34"
        assert len(reply.addresses) <= dns_reply.MAX_ADDRESSES
        assert all(ipaddress.ip_address(address).version == version for address in reply.addresses)
        assert 0 <= reply.ttl_seconds < 1 << 31


def _record(owner: bytes, rtype: int, data: bytes, ttl: int = 60) -> bytes:
    return owner + struct.pack(">HHIH", rtype, 1, ttl, len(data)) + data


def _reply(asked: dns_reply.Asked, *records: bytes, flags: int = 0x8180) -> bytes:
    return struct.pack(">HHHHHH", asked.id, flags, 1, len(records), 0, 0) + asked.question + b"".join(records)


_POINTER = b"\xc0\x0c"
_ALIAS = b"\4edge\3cdn\xc0\x14"
QUERIES = (
    dns_reply.ask(1, "allowed.example", dns.TYPE_A).message,
    dns_reply.ask(2, "LONG-label-of-many-characters." * 7 + "example", 65).message,
    dns_reply.ask(3, "a.b", dns.TYPE_ANY, edns=False).message,
    dns_reply.ask(4, "", 2).message,
    dns_reply.ask(5, "1.0.18.198.in-addr.arpa", dns.TYPE_PTR).message[:-11]
    + dns.option_record(Edns(4096), 0, b"\0\x0a\0\x08cookie.."),
)
_REPLIES = (
    _reply(_ASKED, _record(_POINTER, dns.TYPE_A, b"\1\2\3\4"), _record(_POINTER, dns.TYPE_A, b"\5\6\7\x08")),
    _reply(_ASKED_SIX, _record(_POINTER, dns.TYPE_AAAA, bytes(15) + b"\1")),
    _reply(_ASKED, _record(_POINTER, dns.TYPE_CNAME, _ALIAS), _record(b"\xc0\x31", dns.TYPE_A, b"\1\2\3\4")),
    _reply(_ASKED, _record(_POINTER, dns.TYPE_CNAME, _POINTER)),
    _reply(_ASKED, flags=0x8183),
    _reply(_ASKED, flags=0x8380),
)
TOKENS = (
    b"\xc0\x0c",
    b"\xc0\0",
    b"\xff\xff",
    b"\x3f" + b"a" * 63,
    b"\1a" * 130,
    b"\0\0\x29\x10\0\0\0\0\0\0\0",
    b"\0\0\x29\2\0\0\1\0\0\0\0",
    b"\0\x0f\0\2\0\x0f",
    b"\0\1\0\1",
    b"\0\0\1\0\1",
    b"\0\xff\0\1",
    b"\3www\0",
    _POINTER + b"\0\5\0\1\0\0\0\1\0\2" + _POINTER,
)

TARGETS = (
    Target("dns-query", _check_query, QUERIES, TOKENS),
    Target("dns-reply", _check_reply, _REPLIES, TOKENS),
)
