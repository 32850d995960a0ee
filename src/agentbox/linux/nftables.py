# SPDX-License-Identifier: MIT
"""nf_tables over netlink: a table with its chains, rules and counters, in one transaction; and a counter's value.

A rule is a list of expressions, as `nft --debug=netlink` prints them: load something into a register, compare it (the
rule ends where that fails), act. Numbers are those of linux/netfilter/nf_tables.h.
"""

from __future__ import annotations

import socket
import struct

from agentbox.linux.netlink import (
    NLM_F_ACK,
    NLM_F_APPEND,
    NLM_F_CREATE,
    Message,
    attribute,
    attributes_of,
    nested,
    text,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

FAMILY_INET = 1
FAMILY_IPV4 = 2

HOOK_OUTPUT = 3
PRIORITY_RAW = -300
PRIORITY_DNAT = -100
PRIORITY_FILTER = 0

ICMP = 1
TCP = 6
UDP = 17
ICMPV6 = 58

_SUBSYSTEM = 10 << 8
_BATCH_BEGIN = 0x10
_BATCH_END = 0x11
_NEWTABLE = 0
_NEWCHAIN = 3
_NEWRULE = 6
_NEWOBJ = 18
_GETOBJ = 19

_COUNTER_OBJECT = 1
_REGISTER_VERDICT = 0
_REGISTER = 1
_SECOND_REGISTER = 2
_KEY_NFPROTO = 15
_KEY_L4PROTO = 16
_NETWORK_HEADER = 1
_TRANSPORT_HEADER = 2
_EQUAL = 0
_DROP = 0
_ACCEPT = 1
_DNAT = 1

# What comes of the header, by family: where the source address starts, where the destination address does.
_ADDRESSES: dict[int, tuple[int, int]] = {socket.AF_INET: (12, 16), socket.AF_INET6: (8, 24)}


def _number(kind: int, value: int) -> bytes:
    """Netfilter's numbers are big-endian, whatever the machine is."""
    return attribute(kind, struct.pack("!I", value & 0xFFFFFFFF))


def _expression(name: str, *attributes: bytes) -> bytes:
    # NFTA_LIST_ELEM of NFTA_EXPR_NAME and NFTA_EXPR_DATA
    return nested(1, text(1, name), nested(2, *attributes))


def _load_meta(key: int) -> bytes:
    return _expression("meta", _number(1, _REGISTER), _number(2, key))


def _load_header(base: int, offset: int, length: int) -> bytes:
    return _expression("payload", _number(1, _REGISTER), _number(2, base), _number(3, offset), _number(4, length))


def _is(value: bytes) -> bytes:
    # NFTA_CMP_DATA holds NFTA_DATA_VALUE
    return _expression("cmp", _number(1, _REGISTER), _number(2, _EQUAL), nested(3, attribute(1, value)))


def _immediate(register: int, value: bytes) -> bytes:
    return _expression("immediate", _number(1, register), nested(2, attribute(1, value)))


def _verdict(code: int) -> bytes:
    # NFTA_DATA_VERDICT holds NFTA_VERDICT_CODE
    return _expression("immediate", _number(1, _REGISTER_VERDICT), nested(2, nested(2, _number(1, code))))


def family_is(family: int) -> bytes:
    """The packet is of AF_INET or AF_INET6; to be asked before addresses are looked at."""
    return _load_meta(_KEY_NFPROTO) + _is(bytes([family]))


def protocol_is(protocol: int) -> bytes:
    """The packet is TCP, UDP, ..."""
    return _load_meta(_KEY_L4PROTO) + _is(bytes([protocol]))


def source_begins(family: int, value: bytes) -> bytes:
    """The source address begins with these bytes."""
    return _load_header(_NETWORK_HEADER, _ADDRESSES[family][0], len(value)) + _is(value)


def destination_begins(family: int, value: bytes) -> bytes:
    """The destination address begins with these bytes."""
    return _load_header(_NETWORK_HEADER, _ADDRESSES[family][1], len(value)) + _is(value)


def source_port_is(port: int) -> bytes:
    """Of TCP or UDP."""
    return _load_header(_TRANSPORT_HEADER, 0, 2) + _is(struct.pack("!H", port))


def destination_port_is(port: int) -> bytes:
    """Of TCP or UDP."""
    return _load_header(_TRANSPORT_HEADER, 2, 2) + _is(struct.pack("!H", port))


def dnat(family: int, address: bytes, port: int) -> bytes:
    """Send the packet, and those that follow on its connection, to another address and port."""
    nat = _expression("nat", _number(1, _DNAT), _number(2, family), _number(3, _REGISTER), _number(5, _SECOND_REGISTER))
    return _immediate(_REGISTER, address) + _immediate(_SECOND_REGISTER, struct.pack("!H", port)) + nat


def accept() -> bytes:
    """Let the packet pass this chain."""
    return _verdict(_ACCEPT)


def drop() -> bytes:
    """Lose the packet; who sends it gets EPERM, where it leaves this machine."""
    return _verdict(_DROP)


def do_not_track() -> bytes:
    """The packet is part of no connection that the kernel remembers, and no address of it is ever changed."""
    return _expression("notrack")


def count(counter: str) -> bytes:
    """Add the packet to a counter of the table."""
    return _expression("objref", _number(1, _COUNTER_OBJECT), text(2, counter))


def more_often_than(per_second: int, burst: int) -> bytes:
    """This rule was reached more often than that; so many more are let off after a quiet time."""
    # NFTA_LIMIT_RATE, _UNIT in seconds, _BURST, _TYPE packets, _FLAGS with NFT_LIMIT_F_INV
    rate = attribute(1, struct.pack("!Q", per_second)) + attribute(2, struct.pack("!Q", 1))
    return _expression("limit", rate, _number(3, burst), _number(4, 0), _number(5, 1))


class Table:
    """A table to be made: chains, counters and rules in the order in which they are added."""

    def __init__(self, name: str, family: int) -> None:
        self._name = name
        self._family = family
        self._messages = [self._message(f"table {name}", _NEWTABLE, NLM_F_CREATE, text(1, name))]

    def _message(self, name: str, kind: int, flags: int, payload: bytes) -> Message:
        header = struct.pack("!BBH", self._family, 0, 0)
        return Message(f"nftables, {name}", _SUBSYSTEM | kind, NLM_F_ACK | flags, header + payload)

    def counter(self, name: str) -> None:
        """A counter of packets that rules can name."""
        payload = text(1, self._name) + text(2, name) + _number(3, _COUNTER_OBJECT) + nested(4)
        self._messages.append(self._message(f"counter {name}", _NEWOBJ, NLM_F_CREATE, payload))

    def chain(self, name: str, kind: str, hook: int, priority: int) -> None:
        """A base chain of type "filter" or "nat"; what passes all its rules is accepted."""
        payload = text(1, self._name) + text(3, name)
        payload += nested(4, _number(1, hook), _number(2, priority)) + _number(5, _ACCEPT) + text(7, kind)
        self._messages.append(self._message(f"chain {name}", _NEWCHAIN, NLM_F_CREATE, payload))

    def rule(self, chain: str, *expressions: bytes) -> None:
        """One more rule at the end of a chain."""
        payload = text(1, self._name) + text(2, chain) + nested(4, *expressions)
        number = sum(message.kind == _SUBSYSTEM | _NEWRULE for message in self._messages) + 1
        name = f"rule {number} in chain {chain}"
        self._messages.append(self._message(name, _NEWRULE, NLM_F_CREATE | NLM_F_APPEND, payload))

    def transaction(self) -> list[Message]:
        """All of it or nothing; for netlink.converse."""
        mark = struct.pack("!BBH", socket.AF_UNSPEC, 0, _SUBSYSTEM >> 8)
        return [
            Message("nftables, begin", _BATCH_BEGIN, 0, mark),
            *self._messages,
            Message("nftables, commit", _BATCH_END, 0, mark),
        ]


def counter_request(family: int, table: str, counter: str) -> Message:
    """Asks for a counter; see `packets_of`."""
    payload = struct.pack("!BBH", family, 0, 0) + text(1, table) + text(2, counter) + _number(3, _COUNTER_OBJECT)
    return Message(f"nftables, read counter {counter}", _SUBSYSTEM | _GETOBJ, NLM_F_ACK, payload)


def packets_of(replies: Iterable[bytes]) -> int:
    """How many packets the counter in the replies has seen."""
    for reply in replies:
        found = attributes_of(attributes_of(reply[4:]).get(4, b""))
        if 2 in found:
            return int.from_bytes(found[2], "big")
    raise OSError(0, "nftables: the kernel sent no counter")
