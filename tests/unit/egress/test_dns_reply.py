# SPDX-License-Identifier: MIT
"""Replies of a name server: what is believed of them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbox.egress import dns, dns_reply
from agentbox.egress.dns_reply import Asked, Reply
from tests.unit.egress.name_server import AAAA, CNAME, A, Said, reply, wire

ASKED = dns_reply.ask(0x0102, "Ab.Test", dns.TYPE_A)


def _record(owner: bytes, rtype: int, data: bytes, ttl: int = 60, rclass: int = 1) -> bytes:
    return owner + struct.pack(">HHIH", rtype, rclass, ttl, len(data)) + data


def _message(*records: bytes, asked: Asked = ASKED, flags: int = 0x8180, question: bytes | None = None) -> bytes:
    header = struct.pack(">HHHHHH", asked.id, flags, 1, len(records), 0, 0)
    return header + (asked.question if question is None else question) + b"".join(records)


def _read(*records: bytes) -> Reply:
    read = dns_reply.read_reply(_message(*records), ASKED)
    assert read is not None
    return read


def test_addresses_are_read_in_their_order_with_the_shortest_time() -> None:
    own = b"\xc0\x0c"
    read = _read(_record(own, A, b"\1\1\1\1", 90), _record(own, A, b"\2\2\2\2", 30), _record(own, A, b"\1\1\1\1", 60))
    assert read == Reply(0, False, ("1.1.1.1", "2.2.2.2"), 30)


def test_alias_is_followed_whatever_the_order_and_case_of_the_records() -> None:
    read = _read(_record(wire("EDGE.cdn"), A, b"\3\3\3\3"), _record(wire("aB.tEST"), CNAME, wire("edge.CDN"), 20))
    assert read == Reply(0, False, ("3.3.3.3",), 20)


def test_address_of_another_name_is_not_taken() -> None:
    assert _read(_record(wire("evil.test"), A, b"\6\6\6\6")).addresses == ()


def test_aliases_in_a_circle_lead_nowhere() -> None:
    read = _read(_record(b"\xc0\x0c", CNAME, wire("b.test")), _record(wire("b.test"), CNAME, wire("ab.test")))
    assert read.addresses == ()


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(_record(b"\xc0\x0c", AAAA, bytes(16)), id="the other family"),
        pytest.param(_record(b"\xc0\x0c", A, bytes(16)), id="a length that is no address"),
        pytest.param(_record(b"\xc0\x0c", A, bytes(4), rclass=3), id="another class"),
    ],
)
def test_record_that_was_not_asked_for_is_passed_over(record: bytes) -> None:
    assert _read(record, _record(b"\xc0\x0c", A, b"\1\2\3\4")).addresses == ("1.2.3.4",)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(_message(question=wire("ab.test") + b"\0\1\0\1"), id="letters in another case"),
        pytest.param(_message(question=wire("Ab.Test") + b"\0\x1c\0\1"), id="another type"),
        pytest.param(_message(flags=0x0180), id="a question"),
        pytest.param(_message(flags=0xA980), id="another kind of message"),
        pytest.param(b"\1\3" + _message()[2:], id="another id"),
        pytest.param(_message(_record(b"\xc0\x0c", A, b"\1\1\1\1"))[:-1], id="cut within an address"),
        pytest.param(_message(_record(b"\xc0\x29", A, b"\1\1\1\1")), id="a pointer at itself"),
        pytest.param(_message(_record(b"\xc0\xff", A, b"\1\1\1\1")), id="a pointer forwards"),
        pytest.param(_message(_record(b"\x80a\0", A, b"\1\1\1\1")), id="a reserved label"),
        pytest.param(_message(_record(b"\xc0\x0c", CNAME, b"\x3f")), id="an alias cut short"),
        pytest.param(_message(flags=0x8180)[:11], id="less than a header"),
    ],
)
def test_message_that_is_no_reply_is_not_believed(data: bytes) -> None:
    assert dns_reply.read_reply(data, ASKED) is None


def test_chain_of_pointers_ends() -> None:
    pointers = b"".join(struct.pack(">H", 0xC000 | at) for at in range(12, 4000, 2))
    assert dns_reply.read_reply(_message() + pointers, ASKED) is not None
    assert dns_reply.read_reply(_message(pointers), ASKED) is None


def test_server_that_cannot_read_edns_is_understood() -> None:
    assert dns_reply.read_reply(struct.pack(">HHHHHH", 0x0102, 0x8181, 0, 0, 0, 0), ASKED) == Reply(1)


def test_number_of_addresses_is_bounded() -> None:
    records = [_record(b"\xc0\x0c", A, struct.pack(">I", 1 << 24 | number)) for number in range(300)]
    assert len(_read(*records).addresses) == dns_reply.MAX_ADDRESSES


@given(st.lists(st.ip_addresses(), max_size=8, unique=True), st.sampled_from([A, AAAA]), st.sampled_from(["", "x.y"]))
def test_reply_of_any_addresses_is_read_as_it_was_written(addresses: list[object], qtype: int, alias: str) -> None:
    asked = dns_reply.ask(9, "A-b.c", qtype)
    texts = tuple(map(str, addresses))
    read = dns_reply.read_reply(reply(asked.message, Said(texts, alias), truncated=False), asked)
    assert read is not None
    assert read.addresses == tuple(text for text in texts if (":" in text) == (qtype == AAAA))
