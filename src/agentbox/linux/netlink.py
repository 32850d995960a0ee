# SPDX-License-Identifier: MIT
"""Netlink: how the kernel is told about interfaces, addresses and routes (rtnetlink(7)); nftables.py builds on it.

The programs `ip` and `nft` say the same things, but each costs a process, and neither is on every host. Messages are in
the byte order of the machine, as the kernel's headers lay them out.
"""

from __future__ import annotations

import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

NETLINK_ROUTE = 0
NETLINK_NETFILTER = 12

NLM_F_REQUEST = 0x1
NLM_F_ACK = 0x4
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLM_F_APPEND = 0x800
NESTED = 0x8000

_NLMSG_ERROR = 2
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_REPLY_BYTES = 1 << 16
_RECEIVE_BUFFER_BYTES = 1 << 20

_RTM_NEWLINK = 16
_RTM_NEWADDR = 20
_RTM_NEWROUTE = 24
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_IFA_F_NODAD = 0x02
_RTA_OIF = 4
_RTA_PREFSRC = 7
_RT_TABLE_LOCAL = 255
_RTPROT_STATIC = 4
_RT_SCOPE_HOST = 254
_RTN_LOCAL = 2
_IFF_UP = 1
LOOPBACK_INDEX = 1
"""The kernel makes `lo` first in each network namespace."""


def attribute(kind: int, payload: bytes) -> bytes:
    """A netlink attribute, padded to four bytes."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(payload), kind) + payload + bytes(-len(payload) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """An attribute that holds attributes."""
    return attribute(kind | NESTED, b"".join(attributes))


def text(kind: int, value: str) -> bytes:
    """An attribute that holds a string."""
    return attribute(kind, value.encode() + b"\0")


def attributes_of(payload: bytes) -> dict[int, bytes]:
    """The attributes of a message's payload, by kind; the last of a kind wins."""
    found = {}
    at = 0
    while at + _ATTRIBUTE.size <= len(payload):
        length, kind = _ATTRIBUTE.unpack_from(payload, at)
        if length < _ATTRIBUTE.size:
            break
        found[kind & ~NESTED] = payload[at + _ATTRIBUTE.size : at + length]
        at += length + -length % 4
    return found


class Message:
    """A request: `name` is what an error calls it."""

    def __init__(self, name: str, kind: int, flags: int, payload: bytes) -> None:
        self.name = name
        self.kind = kind
        self.flags = flags
        self.payload = payload

    def encoded(self, sequence: int) -> bytes:
        """Its bytes, as number `sequence` of a conversation."""
        flags = NLM_F_REQUEST | self.flags
        return _HEADER.pack(_HEADER.size + len(self.payload), self.kind, flags, sequence, 0) + self.payload


def open_socket(protocol: int) -> socket.socket:
    """A netlink socket that speaks about this process's network namespace, also when another process holds it."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    return sock


def converse(sock: socket.socket, messages: Sequence[Message]) -> list[bytes]:
    """Send messages in one datagram and wait until each that asks for it (NLM_F_ACK) is acknowledged.

    Returns the payloads of other replies. Raises OSError with the name of the first message that was refused.
    """
    first = 1
    sock.send(b"".join(message.encoded(first + at) for at, message in enumerate(messages)))
    waiting = {first + at: message for at, message in enumerate(messages) if message.flags & NLM_F_ACK}
    replies = []
    while waiting:
        data = sock.recv(_REPLY_BYTES)
        at = 0
        while at + _HEADER.size <= len(data):
            length, kind, _, sequence, _ = _HEADER.unpack_from(data, at)
            payload = data[at + _HEADER.size : at + length]
            if kind == _NLMSG_ERROR:
                (code,) = struct.unpack_from("=i", payload)
                message = waiting.pop(sequence, None)
                if code:
                    name = message.name if message else "netlink"
                    raise OSError(-code, f"{name}: {os.strerror(-code)}")
            else:
                replies.append(payload)
            at += max(length + -length % 4, _HEADER.size)
    return replies


def loopback_up() -> Message:
    """Set `lo` up."""
    payload = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, LOOPBACK_INDEX, _IFF_UP, _IFF_UP)
    return Message("set lo up", _RTM_NEWLINK, NLM_F_ACK, payload)


def loopback_address(address: str) -> Message:
    """Give `lo` one more address."""
    family, packed = _packed(address)
    payload = struct.pack("=BBBBI", family, 8 * len(packed), _IFA_F_NODAD, 0, LOOPBACK_INDEX)
    payload += attribute(_IFA_LOCAL, packed) + attribute(_IFA_ADDRESS, packed)
    flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
    return Message(f"give lo the address {address}", _RTM_NEWADDR, flags, payload)


def everything_is_local(source: str) -> Message:
    """Make every address of a family one of this machine's own: it is delivered here, never sent. `source` is the
    address of that family that connections come from, unless they choose another."""
    family, packed = _packed(source)
    payload = struct.pack("=BBBBBBBBI", family, 0, 0, 0, _RT_TABLE_LOCAL, _RTPROT_STATIC, _RT_SCOPE_HOST, _RTN_LOCAL, 0)
    payload += attribute(_RTA_OIF, struct.pack("=i", LOOPBACK_INDEX)) + attribute(_RTA_PREFSRC, packed)
    name = f"make every IPv{4 if family == socket.AF_INET else 6} address local"
    return Message(name, _RTM_NEWROUTE, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, payload)


def _packed(address: str) -> tuple[int, bytes]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return family, socket.inet_pton(family, address)
