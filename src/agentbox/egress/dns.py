# SPDX-License-Identifier: MIT
"""Questions of the domain name system read, and their answers written: bytes to values and back, without I/O.

The reader takes what a hostile guest sends. It goes over a message once and forwards, follows no compression pointer (a
question has no earlier name to point at), and makes of every message a question, a refusal with its code, or nothing.
Written from RFC 1035, 6891 (EDNS), 8914 (extended errors) and 7766 (TCP).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

TYPE_A = 1
TYPE_CNAME = 5
TYPE_PTR = 12
TYPE_AAAA = 28
TYPE_OPT = 41
TYPE_IXFR = 251
TYPE_AXFR = 252
TYPE_ANY = 255
CLASS_IN = 1

HEADER = struct.Struct(">HHHHHH")
RECORD = struct.Struct(">HHIH")
QUESTION_TAIL = struct.Struct(">HH")
FLAG_RESPONSE = 0x8000
FLAG_TRUNCATED = 0x0200
FLAG_RECURSION_DESIRED = 0x0100
_FLAG_RECURSION_AVAILABLE = 0x0080
_FLAG_CHECKING_DISABLED = 0x0010
POINTER = 0xC0

MAX_NAME_BYTES = 255
MAX_QUERY_BYTES = 4096
MAX_STREAM_BYTES = 0xFFFF
PLAIN_DATAGRAM_BYTES = 512
# What is sent stays on a loopback interface, where nothing is fragmented.
MAX_DATAGRAM_BYTES = 4096
_MAX_ADDITIONAL = 8
_OPTION_EXTENDED_ERROR = 15
_PLAIN_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


class Code(IntEnum):
    """Response codes; the last one needs EDNS."""

    NOERROR = 0
    FORMERR = 1
    SERVFAIL = 2
    NXDOMAIN = 3
    NOTIMP = 4
    REFUSED = 5
    BADVERS = 16


class ErrorInfo(IntEnum):
    """Codes of extended errors that are used here."""

    BLOCKED = 15
    NOT_SUPPORTED = 21
    NO_REACHABLE_AUTHORITY = 22


@dataclass(frozen=True, slots=True)
class Edns:
    """What the OPT record of a message says: the largest datagram its sender takes, in bytes, and the version."""

    datagram_bytes: int
    version: int = 0


@dataclass(frozen=True, slots=True)
class Query:
    """A question. `question` are its bytes as they came, so that an answer repeats them in the same case."""

    id: int
    flags: int
    question: bytes
    labels: tuple[bytes, ...]
    qtype: int
    qclass: int
    edns: Edns | None

    @property
    def name(self) -> str:
        """The name as text, without a trailing dot; see `name_text`."""
        return name_text(self.labels)


@dataclass(frozen=True, slots=True)
class Unusable:
    """A message that is answered with a code alone; `question` is empty where it could not be read."""

    id: int
    flags: int
    code: Code
    question: bytes = b""
    edns: Edns | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """One record about the name in question."""

    rtype: int
    ttl_seconds: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ExtendedError:
    """Why there is no answer, for programs and people. Sent only to who speaks EDNS."""

    info: ErrorInfo
    text: str


class WireError(ValueError):
    """Bytes are not what they should be."""


def read_query(message: bytes) -> Query | Unusable | None:
    """What a message asks; None for what must not be answered: less than a header, or itself an answer."""
    if len(message) < HEADER.size:
        return None
    ident, flags, questions, answers, authority, additional = HEADER.unpack_from(message)
    if flags & FLAG_RESPONSE:
        return None
    if flags >> 11 & 0xF:
        return Unusable(ident, flags, Code.NOTIMP)
    if questions != 1 or answers or authority or additional > _MAX_ADDITIONAL or len(message) > MAX_QUERY_BYTES:
        return Unusable(ident, flags, Code.FORMERR)
    try:
        labels, at = _plain_name(message, HEADER.size)
        qtype, qclass = QUESTION_TAIL.unpack_from(message, at)
    except (WireError, struct.error):
        return Unusable(ident, flags, Code.FORMERR)
    at += QUESTION_TAIL.size
    question = message[HEADER.size : at]
    try:
        edns = _additional(message, at, additional)
    except (WireError, struct.error):
        return Unusable(ident, flags, Code.FORMERR, question)
    if edns is not None and edns.version:
        return Unusable(ident, flags, Code.BADVERS, question, edns)
    return Query(ident, flags, question, labels, qtype, qclass, edns)


def write_answer(
    query: Query | Unusable,
    code: Code,
    answers: Sequence[Answer] = (),
    error: ExtendedError | None = None,
    *,
    max_bytes: int | None = None,
) -> bytes:
    """The answer to a message. Without `max_bytes` it fits the datagram that the asker takes; what does not fit loses
    the text of its error first, then is cut and marked as truncated, so that the asker comes by TCP."""
    most = datagram_bytes(query.edns) if max_bytes is None else max_bytes
    message = _message(query, code, answers, error)
    if len(message) > most and error is not None:
        message = _message(query, code, answers, ExtendedError(error.info, ""))
    if len(message) > most:
        message = _message(query, code, (), None, truncated=True)
    return message


def datagram_bytes(edns: Edns | None) -> int:
    """The largest datagram for an asker."""
    if edns is None:
        return PLAIN_DATAGRAM_BYTES
    return min(max(edns.datagram_bytes, PLAIN_DATAGRAM_BYTES), MAX_DATAGRAM_BYTES)


def name_text(labels: Sequence[bytes]) -> str:
    """Labels as text with dots between them. A byte that no host name has stands as a backslash and three digits, so
    that two names are never the same text and none has a dot, a space or a control character of its own."""
    return ".".join(
        "".join(chr(byte) if byte in _PLAIN_BYTES else f"\\{byte:03d}" for byte in label) for label in labels
    )


def name_bytes(name: str) -> bytes:
    """A host name as labels with their lengths. Raises WireError for what is too long or has an empty label."""
    parts = name.encode("ascii", "replace").split(b".") if name else []
    if any(not 0 < len(part) <= 63 for part in parts):
        raise WireError(f"{name!r} has a label that is empty or longer than 63 bytes")
    wire = b"".join(bytes((len(part),)) + part for part in parts) + b"\0"
    if len(wire) > MAX_NAME_BYTES:
        raise WireError(f"{name!r} is longer than a name can be")
    return wire


def option_record(edns: Edns, code: int = 0, options: bytes = b"") -> bytes:
    """An OPT record; `code` is the response code, of which this record holds the upper bits."""
    return b"\0" + RECORD.pack(TYPE_OPT, edns.datagram_bytes, code >> 4 << 24, len(options)) + options


def _message(
    query: Query | Unusable,
    code: Code,
    answers: Sequence[Answer],
    error: ExtendedError | None,
    *,
    truncated: bool = False,
) -> bytes:
    flags = FLAG_RESPONSE | _FLAG_RECURSION_AVAILABLE | code & 0xF
    # The kind of message, and what the asker wanted, come back as they were.
    flags |= query.flags & (0x7800 | FLAG_RECURSION_DESIRED | _FLAG_CHECKING_DISABLED)
    if truncated:
        flags |= FLAG_TRUNCATED
    parts = [
        HEADER.pack(query.id, flags, bool(query.question), len(answers), 0, query.edns is not None),
        query.question,
    ]
    for answer in answers:
        # The owner of every record is the name in question, which stands right behind the header.
        parts.append(bytes((POINTER, HEADER.size)))
        parts.append(RECORD.pack(answer.rtype, CLASS_IN, answer.ttl_seconds, len(answer.data)))
        parts.append(answer.data)
    if query.edns is not None:
        options = b""
        if error is not None:
            text = error.text.encode()
            options = struct.pack(">HHH", _OPTION_EXTENDED_ERROR, 2 + len(text), error.info) + text
        parts.append(option_record(Edns(MAX_DATAGRAM_BYTES), code, options))
    return b"".join(parts)


def _plain_name(message: bytes, at: int) -> tuple[tuple[bytes, ...], int]:
    """The labels of a name without pointers, and where it ends."""
    labels: list[bytes] = []
    start = at
    while True:
        if at >= len(message):
            raise WireError("the message ends within a name")
        length = message[at]
        at += 1
        if at + length - start > MAX_NAME_BYTES:
            raise WireError("the name is too long")
        if not length:
            return tuple(labels), at
        if length & POINTER:
            raise WireError("a question has no name to point at")
        label = message[at : at + length]
        if len(label) < length:
            raise WireError("the message ends within a label")
        labels.append(label)
        at += length


def _additional(message: bytes, at: int, count: int) -> Edns | None:
    """The OPT record behind the question; the message must end with its last record."""
    edns: Edns | None = None
    for _ in range(count):
        start = at
        at = skipped_name(message, at)
        rtype, rclass, ttl, length = RECORD.unpack_from(message, at)
        at += RECORD.size + length
        if at > len(message):
            raise WireError("the message ends within a record")
        if rtype == TYPE_OPT:
            if edns is not None or message[start]:
                raise WireError("a message has one OPT record, of the root")
            edns = Edns(rclass, ttl >> 16 & 0xFF)
    if at != len(message):
        raise WireError("something follows the last record")
    return edns


def skipped_name(message: bytes, at: int) -> int:
    """Where a name ends that may be compressed; pointers are passed over, not followed. Raises WireError."""
    start = at
    while at < len(message):
        length = message[at]
        at += 1
        if not length:
            return at
        if length & POINTER == POINTER:
            return at + 1
        at += length
        if length & POINTER or at - start > MAX_NAME_BYTES:
            break
    raise WireError("this is no name")
