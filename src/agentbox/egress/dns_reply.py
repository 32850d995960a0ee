# SPDX-License-Identifier: MIT
"""Questions to a name server written, and its replies read. Pure.

A reply is as hostile as a question: whoever guesses an id and a port can send one. It must repeat the question byte for
byte, pointers in it only lead backwards, and the addresses taken are those that a chain of aliases from the question
leads to.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

from agentbox.egress.dns import (
    CLASS_IN,
    FLAG_RECURSION_DESIRED,
    FLAG_RESPONSE,
    FLAG_TRUNCATED,
    HEADER,
    MAX_NAME_BYTES,
    POINTER,
    QUESTION_TAIL,
    RECORD,
    TYPE_AAAA,
    TYPE_CNAME,
    Code,
    Edns,
    WireError,
    name_bytes,
    option_record,
)

MAX_ADDRESSES = 64
_MAX_RECORDS = 512
_MAX_ALIASES = 16
_DATAGRAM_BYTES = 1232


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that was sent."""

    id: int
    question: bytes
    qtype: int
    message: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server says: its code, the addresses in their usual spelling in the order given, and for how long."""

    code: int
    truncated: bool = False
    addresses: tuple[str, ...] = ()
    ttl_seconds: int = 0


def ask(ident: int, name: str, qtype: int, *, edns: bool = True) -> Asked:
    """The question for records of a name, whose case is kept. Raises WireError for what is no name."""
    question = name_bytes(name) + QUESTION_TAIL.pack(qtype, CLASS_IN)
    header = HEADER.pack(ident, FLAG_RECURSION_DESIRED, 1, 0, 0, edns)
    record = option_record(Edns(_DATAGRAM_BYTES)) if edns else b""
    return Asked(ident, question, qtype, header + question + record)


def read_reply(message: bytes, asked: Asked) -> Reply | None:
    """What a message says to a question; None when it is no reply to it or not well formed."""
    try:
        return _read(message, asked)
    except (WireError, struct.error):
        return None


def lost_case(message: bytes, asked: Asked) -> bool:
    """Whether a message is a reply to the question but for the case of its letters, which some servers do not keep."""
    end = HEADER.size + len(asked.question)
    if len(message) < end or int.from_bytes(message[:2], "big") != asked.id or not message[2] & FLAG_RESPONSE >> 8:
        return False
    question = message[HEADER.size : end]
    return question != asked.question and question.lower() == asked.question.lower()


def _read(message: bytes, asked: Asked) -> Reply | None:
    ident, flags, questions, answers, _, _ = HEADER.unpack_from(message)
    if ident != asked.id or not flags & FLAG_RESPONSE or flags >> 11 & 0xF:
        return None
    code = flags & 0xF
    at = HEADER.size + len(asked.question)
    if questions != 1 or message[HEADER.size : at] != asked.question:
        # A server that cannot read a question need not repeat it.
        return Reply(code) if not questions and code in (Code.FORMERR, Code.NOTIMP, Code.REFUSED) else None
    if flags & FLAG_TRUNCATED:
        return Reply(code, truncated=True)
    addresses, ttl = _addresses(message, at, answers, asked)
    return Reply(code, False, addresses, ttl)


def _addresses(message: bytes, at: int, count: int, asked: Asked) -> tuple[tuple[str, ...], int]:
    aliases: dict[bytes, tuple[bytes, int]] = {}
    found: dict[bytes, list[tuple[str, int]]] = {}
    size = 16 if asked.qtype == TYPE_AAAA else 4
    for _ in range(min(count, _MAX_RECORDS)):
        owner, at = _name(message, at)
        rtype, rclass, ttl, length = RECORD.unpack_from(message, at)
        at += RECORD.size
        data = message[at : at + length]
        if len(data) < length:
            raise WireError("the message ends within a record")
        if ttl >> 31:
            # RFC 2181: a number with the top bit set means zero.
            ttl = 0
        if rclass == CLASS_IN and rtype == TYPE_CNAME:
            aliases.setdefault(owner, (_name(message, at)[0], ttl))
        elif rclass == CLASS_IN and rtype == asked.qtype and length == size:
            found.setdefault(owner, []).append((str(ipaddress.ip_address(data)), ttl))
        at += length
    name, ttls = _name(asked.question, 0)[0], []
    for _ in range(_MAX_ALIASES):
        if name in found or name not in aliases:
            break
        name, ttl = aliases[name]
        ttls.append(ttl)
    records = found.get(name, [])[:MAX_ADDRESSES]
    ttls += [ttl for _, ttl in records]
    return tuple(dict.fromkeys(address for address, _ in records)), min(ttls, default=0)


def _name(message: bytes, at: int) -> tuple[bytes, int]:
    """A name in lower case as its uncompressed bytes, and where it ends in the message."""
    parts: list[bytes] = []
    size = 1
    end = 0
    earliest = at
    while True:
        if at >= len(message):
            raise WireError("the message ends within a name")
        length = message[at]
        if length & POINTER == POINTER:
            if at + 1 >= len(message):
                raise WireError("the message ends within a pointer")
            end = end or at + 2
            at = (length & ~POINTER) << 8 | message[at + 1]
            # Each jump goes before where the last one led, so there is no loop.
            if at >= earliest:
                raise WireError("a pointer does not lead backwards")
            earliest = at
            continue
        if length & POINTER:
            raise WireError("this is no label")
        at += 1
        if not length:
            return b"".join(parts) + b"\0", end or at
        size += 1 + length
        if size > MAX_NAME_BYTES:
            raise WireError("the name is too long")
        label = message[at : at + length]
        if len(label) < length:
            raise WireError("the message ends within a label")
        parts.append(bytes((length,)) + label.lower())
        at += length
