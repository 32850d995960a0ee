# SPDX-License-Identifier: MIT
"""Messages for the kernel: their layout, and what is made of its answers."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

import pytest

from agentbox.linux import netlink, nftables
from agentbox.linux.netlink import NLM_F_ACK, Message

pytestmark = pytest.mark.linux


@pytest.mark.parametrize("length", range(9))
def test_an_attribute_is_padded_to_four_bytes_and_says_its_length_without_the_padding(length: int) -> None:
    found = netlink.attribute(7, b"x" * length)
    assert len(found) % 4 == 0
    assert struct.unpack_from("=HH", found) == (4 + length, 7)
    assert netlink.attributes_of(found + netlink.text(8, "next")) == {7: b"x" * length, 8: b"next\0"}


def test_a_nested_attribute_is_found_by_its_plain_number() -> None:
    inner = netlink.attribute(1, b"abc")
    assert netlink.attributes_of(netlink.nested(3, inner)) == {3: inner}


def test_attributes_that_were_cut_end_the_reading() -> None:
    assert netlink.attributes_of(b"\0\0\1\0") == {}
    assert netlink.attributes_of(b"\x08") == {}


def test_a_message_says_its_length_and_its_number() -> None:
    length, kind, flags, sequence, port = struct.unpack_from("=IHHII", Message("m", 16, NLM_F_ACK, b"1234").encoded(9))
    assert (length, kind, flags, sequence, port) == (20, 16, 5, 9, 0)


@contextlib.contextmanager
def kernel(*answers: bytes) -> Iterator[socket.socket]:
    """A socket that answers what is sent with that."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for answer in answers:
            theirs.send(answer)
        yield ours


def acknowledgement(sequence: int, code: int) -> bytes:
    body = struct.pack("=i", -code) + bytes(16)
    return struct.pack("=IHHII", 16 + len(body), 2, 0, sequence, 0) + body


def test_a_conversation_lasts_until_everything_is_acknowledged() -> None:
    messages = [Message("one", 16, NLM_F_ACK, b""), Message("two", 16, 0, b""), Message("three", 16, NLM_F_ACK, b"")]
    other = struct.pack("=IHHII", 20, 99, 0, 3, 0) + b"data"
    with kernel(acknowledgement(1, 0) + other, acknowledgement(3, 0)) as sock:
        assert netlink.converse(sock, messages) == [b"data"]


def test_a_refusal_names_the_message_that_was_refused() -> None:
    messages = [Message("set lo up", 16, NLM_F_ACK, b""), Message("add a route", 24, NLM_F_ACK, b"")]
    with (
        kernel(acknowledgement(1, 0) + acknowledgement(2, 1)) as sock,
        pytest.raises(PermissionError, match="add a route: Operation not permitted"),
    ):
        netlink.converse(sock, messages)


def test_the_kernel_itself_is_understood() -> None:
    with (
        netlink.open_socket(netlink.NETLINK_ROUTE) as route,
        pytest.raises(OSError, match="no such request") as refused,
    ):
        netlink.converse(route, [Message("no such request", 0x7FF, NLM_F_ACK, bytes(16))])
    assert refused.value.errno
    assert os.strerror(refused.value.errno) in str(refused.value)


def test_a_table_is_one_transaction_and_each_rule_has_a_name_for_errors() -> None:
    table = nftables.Table("t", nftables.FAMILY_INET)
    table.counter("c")
    table.chain("out", "filter", nftables.HOOK_OUTPUT, nftables.PRIORITY_FILTER)
    table.rule("out", nftables.protocol_is(nftables.TCP), nftables.accept())
    table.rule("out", nftables.count("c"), nftables.drop())
    names = [message.name for message in table.transaction()]
    assert names == [
        "nftables, begin",
        "nftables, table t",
        "nftables, counter c",
        "nftables, chain out",
        "nftables, rule 1 in chain out",
        "nftables, rule 2 in chain out",
        "nftables, commit",
    ]


def test_a_counter_is_read_from_the_reply_and_its_absence_is_an_error() -> None:
    data = netlink.nested(4, netlink.attribute(1, bytes(8)), netlink.attribute(2, (77).to_bytes(8, "big")))
    assert nftables.packets_of([b"none", bytes(4) + netlink.text(1, "t") + data]) == 77
    with pytest.raises(OSError, match="no counter"):
        nftables.packets_of([b"none"])
