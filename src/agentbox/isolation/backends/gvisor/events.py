# SPDX-License-Identifier: MIT
"""gVisor's trace stream: which points are asked for, and what its packets say. Pure, no exception whatever comes in.

A packet is `u16 size of the header, u16 kind, u32 dropped` and a message in the protocol buffers' form. `dropped`
counts the packets that gVisor could not send. Only what a record needs is read; environments are passed over.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

from agentbox.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_HEADER = struct.Struct("<HHI")
# Kinds of messages, and in each the numbers of the fields.
_EXECVE, _OPEN, _CONNECT = 3, 7, 10
_COMMON, _EXIT = 1, 2
_GROUP, _CWD = 4, 8
_ERRNO = 2
_PATH, _ARGV = 2, 3
_FD_PATH, _NAME, _FLAGS, _ADDRESS = 5, 6, 7, 6
_MAX_WORDS, _MAX_WORD_BYTES = 256, 4096
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

# Calls that newer machines do not have.
_OLDER: tuple[tuple[str, list[str]], ...] = (("open", []), ("creat", [])) if os.uname().machine == "x86_64" else ()
# Where there are rules, nothing is started.
NO_RULES = "no exec rules"
PROGRAMS: tuple[dict[str, Any], ...] = ({"name": "sentry/execve", "context_fields": ["group_id"]},)
EVERYTHING: tuple[dict[str, Any], ...] = (
    *PROGRAMS,
    *(
        {"name": f"syscall/{name}/exit", "optional_fields": fields, "context_fields": ["group_id", "cwd"]}
        for name, fields in (("openat", ["fd_path"]), *_OLDER)
    ),
    {"name": "syscall/connect/exit", "context_fields": ["group_id"]},
)


@dataclass(frozen=True, slots=True)
class Packet:
    """`report` is what engine/recorder.py records, None where there is nothing to; `dropped` as in the header."""

    report: dict[str, Any] | None
    dropped: int


def packet_of(data: bytes) -> Packet:
    """What a packet says; an empty one where it says nothing that can be read."""
    if len(data) < _HEADER.size:
        return Packet(None, 0)
    size, kind, dropped = _HEADER.unpack_from(data)
    fields: dict[int, list[Any]] = {}
    for number, value in _fields(data[max(size, _HEADER.size) :]):
        fields.setdefault(number, []).append(value)
    common = dict(_fields(_bytes(fields, _COMMON)))
    pid = common.get(_GROUP, 0)
    pid = pid if isinstance(pid, int) else 0
    if kind == _EXECVE:
        words = [word for word in fields.get(_ARGV, ()) if isinstance(word, bytes)]
        return Packet(
            {
                "spawn": {
                    "pid": pid,
                    "exe": _text(_bytes(fields, _PATH)),
                    "argv": [_text(word[:_MAX_WORD_BYTES]) for word in words[:_MAX_WORDS]],
                    "allowed": True,
                    "reason": NO_RULES,
                }
            },
            dropped,
        )
    if kind == _OPEN:
        return Packet({"witness": {"pid": pid, **_opened(fields, common)}}, dropped)
    if kind == _CONNECT:
        return Packet({"witness": {"pid": pid, **_connected(_bytes(fields, _ADDRESS))}}, dropped)
    return Packet(None, dropped)


def _opened(fields: dict[int, list[Any]], common: dict[int, Any]) -> dict[str, Any]:
    name = _text(_bytes(fields, _NAME))
    below = common.get(_CWD)
    start = _text(_bytes(fields, _FD_PATH)) or (_text(below) if isinstance(below, bytes) else "")
    flags = fields.get(_FLAGS, [0])[0]
    writes = isinstance(flags, int) and bool(flags & _WRITES)
    found: dict[str, Any] = {
        "op": "open_write" if writes else "open_read",
        "path": os.path.normpath(os.path.join(start or "/", name)),
    }
    code = dict(_fields(_bytes(fields, _EXIT))).get(_ERRNO, 0)
    if code:
        found["error"] = errno.errorcode.get(code, "") if isinstance(code, int) else ""
    return found


def _connected(address: bytes) -> dict[str, Any]:
    family = int.from_bytes(address[:2], "little")
    if family == socket.AF_UNIX:
        path = address[2:]
        return {"op": "connect", "path": _text(b"@" + path[1:] if path[:1] == b"\0" else path.partition(b"\0")[0])}
    start, length = (4, 4) if family == socket.AF_INET else (8, 16)
    raw = address[start : start + length]
    if family in (socket.AF_INET, socket.AF_INET6) and len(raw) == length:
        return {
            "op": "connect",
            "host": socket.inet_ntop(socket.AddressFamily(family), raw),
            "port": int.from_bytes(address[2:4], "big"),
        }
    return {"op": "connect", "family": family}


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def _bytes(fields: dict[int, list[Any]], number: int) -> bytes:
    value = fields.get(number, [b""])[-1]
    return value if isinstance(value, bytes) else b""


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field, as far as the message can be read: integers, and bytes of whatever has a
    length."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
        elif kind == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                return
            yield key >> 3, data[at : at + length]
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            return


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and where the next thing begins; the end of the data where it is cut off."""
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 0x7F) << shift
        at += 1
        if not data[at - 1] & 0x80:
            return value, at
        shift += 7
    return value, len(data)
