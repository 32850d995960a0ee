# SPDX-License-Identifier: MIT
"""The tar format, as far as snapshots use it: POSIX ustar headers with pax records, nothing else.

Read and written by this module alone, so that a header has one meaning: what another reader would take from a GNU
header, a sparse map, a global header or a second value of the same field is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from agentbox.errors import UnsafeArchiveError
from agentbox.workspace.names import shown

BLOCK = 512
# Two empty blocks end an archive; writers fill up to a record of 20 blocks.
END = bytes(2 * BLOCK)
MAX_PAX_BYTES = 16 << 10
_MAX_OCTAL_SIZE = 8**11 - 1
_NANOSECOND = 10**9
_HINT = "the archive was damaged, or not made by agentbox; delete the snapshot"


class Kind(Enum):
    """The kinds of member that a snapshot has."""

    FILE = b"0"
    HARD_LINK = b"1"
    SYMLINK = b"2"
    DIRECTORY = b"5"


_OTHER_KINDS = {
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a FIFO",
    b"7": "a contiguous file",
    b"g": "a global header",
    b"L": "a GNU long name",
    b"K": "a GNU long link",
    b"S": "a GNU sparse file",
    b"D": "a GNU directory dump",
    b"M": "a continuation of another volume",
    b"V": "a volume label",
    b"X": "a Solaris header",
}


@dataclass(frozen=True, slots=True)
class Member:
    """One member: `name` without a trailing '/', `link` the target of both kinds of link, `mode` as stored."""

    name: bytes
    kind: Kind
    size: int = 0
    mode: int = 0o644
    mtime_ns: int = 0
    link: bytes = b""


def unsafe(member: str | bytes, rule: str) -> UnsafeArchiveError:
    """The error for an archive that breaks `rule` at `member`."""
    name = shown(member)
    return UnsafeArchiveError(f"unsafe archive: member '{name}' {rule}", hint=_HINT, member=name, rule=rule)


def damaged(what: str) -> UnsafeArchiveError:
    """The error for an archive that cannot be read to its end."""
    return UnsafeArchiveError(f"damaged archive: {what}", hint=_HINT, rule=what)


def padding(size: int) -> bytes:
    """The zeros after `size` bytes of content."""
    return bytes(-size % BLOCK)


def encode(member: Member) -> bytes:
    """The header blocks of a member."""
    name = member.name + b"/" if member.kind is Kind.DIRECTORY else member.name
    seconds, nanoseconds = divmod(member.mtime_ns, _NANOSECOND)
    records = []
    if len(name) > 100 or not name.isascii():
        records.append((b"path", name))
    if len(member.link) > 100 or not member.link.isascii():
        records.append((b"linkpath", member.link))
    if nanoseconds or not 0 <= seconds <= _MAX_OCTAL_SIZE:
        records.append((b"mtime", _decimal(member.mtime_ns)))
    if member.size > _MAX_OCTAL_SIZE:
        records.append((b"size", b"%d" % member.size))
    if not all(_is_utf8(value) for _, value in records):
        records.insert(0, (b"hdrcharset", b"BINARY"))
    header = _header(
        name[:100],
        member.kind.value,
        size=member.size if member.size <= _MAX_OCTAL_SIZE else 0,
        mode=member.mode,
        seconds=min(max(seconds, 0), _MAX_OCTAL_SIZE),
        link=member.link[:100],
    )
    if not records:
        return header
    body = b"".join(_record(key, value) for key, value in records)
    return _header(b"pax-header", b"x", size=len(body), mode=0o644) + body + padding(len(body)) + header


def _decimal(nanoseconds: int) -> bytes:
    whole, rest = divmod(abs(nanoseconds), _NANOSECOND)
    return b"%s%d.%09d" % (b"-" if nanoseconds < 0 else b"", whole, rest)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _record(key: bytes, value: bytes) -> bytes:
    body = b" " + key + b"=" + value + b"\n"
    length = len(body) + 1
    while len(str(length)) + len(body) != length:
        length = len(str(length)) + len(body)
    return str(length).encode() + body


def _header(name: bytes, kind: bytes, *, size: int, mode: int, seconds: int = 0, link: bytes = b"") -> bytes:
    head = b"%s%07o\0%07o\0%07o\0%011o\0%011o\0" % (name.ljust(100, b"\0"), mode, 0, 0, size, seconds)
    tail = kind + link.ljust(100, b"\0") + b"ustar\x0000" + bytes(64) + b"%07o\0%07o\0" % (0, 0)
    tail = tail.ljust(BLOCK - len(head) - 8, b"\0")
    total = sum(head) + sum(tail) + 8 * ord(" ")
    return head + b"%06o\0 " % total + tail


def read_members(read: Callable[[int], bytes]) -> Iterator[Member]:
    """The members of an archive. `read(n)` gives exactly n bytes or raises UnsafeArchiveError.

    Between two steps the caller reads the content of a file, `size` bytes and its padding. Ends after the two empty
    blocks that end an archive. Raises UnsafeArchiveError for everything that is not plain.
    """
    while True:
        block = read(BLOCK)
        if not any(block):
            if any(read(BLOCK)):
                raise damaged("an empty block stands before its end")
            return
        member, kind = _decode(block)
        if kind == b"x":
            if member.size > MAX_PAX_BYTES:
                raise unsafe(member.name, f"has an extended header over {MAX_PAX_BYTES} bytes")
            body = read(member.size)
            read(-member.size % BLOCK)
            member, kind = _decode(read(BLOCK))
            if kind == b"x":
                raise unsafe(member.name, "has two extended headers")
            member = _override(member, _pax_records(body, member.name))
        yield _checked(member, kind)


def _decode(block: bytes) -> tuple[Member, bytes]:
    if block[257:262] != b"ustar":
        raise damaged("a header is not one of a tar archive")
    if _number(block[148:156]) != sum(block[:148]) + 8 * ord(" ") + sum(block[156:]):
        raise damaged("the checksum of a header is wrong")
    name = _text(block[0:100])
    if block[257:265] == b"ustar\x0000" and (prefix := _text(block[345:500])):
        name = prefix + b"/" + name
    kind = block[156:157]
    member = Member(
        name,
        Kind.FILE,
        size=_number(block[124:136]),
        mode=_number(block[100:108]),
        mtime_ns=_number(block[136:148]) * _NANOSECOND,
        link=_text(block[157:257]),
    )
    return member, b"0" if kind == b"\0" else kind


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


_OCTAL = re.compile(rb" *([0-7]*)[ \0]*\Z")


def _number(field: bytes) -> int:
    match = _OCTAL.match(field)
    if match is None:
        raise damaged("a number in a header is negative, binary or no octal number")
    return int(match[1] or b"0", 8)


def _pax_records(body: bytes, member: bytes) -> dict[bytes, bytes]:
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(body):
        digits = re.compile(rb"([1-9]\d{0,5}) ").match(body, at)
        end = at + int(digits[1]) if digits else 0
        if digits is None or end > len(body) or end <= digits.end() or body[end - 1 : end] != b"\n":
            raise unsafe(member, "has an extended header that is not well formed")
        key, equals, value = body[digits.end() : end - 1].partition(b"=")
        if not equals or key in records:
            raise unsafe(member, "has an extended header that says one thing twice or nothing")
        records[key] = value
        at = end
    return records


_TIME = re.compile(rb"(-?)(\d{1,11})(?:\.(\d{1,30}))?\Z")


def _override(member: Member, records: dict[bytes, bytes]) -> Member:
    for key in records:
        if key.startswith((b"GNU.sparse", b"SCHILY.realsize")):
            raise unsafe(member.name, "is a sparse file")
    path = records.get(b"path", member.name)
    size, mtime_ns = member.size, member.mtime_ns
    if b"size" in records:
        if not re.fullmatch(rb"\d{1,18}", records[b"size"]):
            raise unsafe(path, "has a size that is no number")
        size = int(records[b"size"])
    if b"mtime" in records:
        mtime_ns = _nanoseconds(records[b"mtime"], mtime_ns)
    return replace(member, name=path, link=records.get(b"linkpath", member.link), size=size, mtime_ns=mtime_ns)


def _nanoseconds(text: bytes, otherwise: int) -> int:
    time = _TIME.match(text)
    if time is None:
        return otherwise
    value = int(time[2]) * _NANOSECOND + int((time[3] or b"0").ljust(9, b"0")[:9])
    return -value if time[1] else value


def _checked(member: Member, letter: bytes) -> Member:
    if letter not in {kind.value for kind in Kind}:
        raise unsafe(member.name, f"is {_OTHER_KINDS.get(letter, 'of a kind that is not known')}, which is not allowed")
    kind = Kind(letter)
    name = member.name.removesuffix(b"/") if kind is Kind.DIRECTORY else member.name
    if kind is not Kind.FILE and member.size:
        raise unsafe(member.name, "has content, and is no file")
    link = member.link if kind in {Kind.SYMLINK, Kind.HARD_LINK} else b""
    return replace(member, name=name, kind=kind, link=link)
