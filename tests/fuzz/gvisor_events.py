# SPDX-License-Identifier: MIT
"""What gVisor says of its programs, which a guest that got out of its kernel could say in its place."""

from __future__ import annotations

import json
import struct

from agentbox.isolation.backends.gvisor.events import packet_of
from tests.fuzz.target import Target

_HEADER = struct.Struct("<HHI")


def _check(data: bytes) -> None:
    packet = packet_of(data)
    assert packet.dropped >= 0
    if packet.report is None:
        return
    (kind, report), *others = packet.report.items()
    assert not others
    assert isinstance(report["pid"], int)
    json.dumps(packet.report)
    if kind == "spawn":
        assert len(report["argv"]) <= 256
        assert all(len(word) <= 4096 for word in report["argv"])
    else:
        assert kind == "witness"
        assert report["op"] in ("open_read", "open_write", "connect")


def message(kind: int, body: bytes, dropped: int = 0) -> bytes:
    """A packet as gVisor sends it."""
    return _HEADER.pack(_HEADER.size, kind, dropped) + body


EXECVE = message(
    3, b'\n\x06\x10\x03 \x03B\x00\x12\r/usr/bin/echo\x1a\t/bin/echo\x1a\nhello_from"\x0bSECRET=hush"\tPWD=/work'
)
OPEN = message(
    7, b"\n\t \x02B\x05/work\x12\x02\x10\x02\x18\x81\x02 \x9c\xff\xff\xff\xff\xff\xff\xff\xff\x012\x06../etc8A"
)
CONNECT = message(10, b"\n\x02 \x03\x12\x02\x10o\x18* \x032\x10\x02\x00\x00c\x7f\x00\x00\x01" + bytes(8), dropped=7)
CONNECT_UNIX = message(10, b"\n\x02 \x032\x0d\x01\x00/run/a.sock")

TARGETS = (
    Target(
        "gvisor_events",
        _check,
        (EXECVE, OPEN, CONNECT, CONNECT_UNIX, message(5, b"\n\x02 \x03"), b""),
        (b"\x08\x00\x03\x00\x00\x00\x00\x00", b"\xff" * 10, b"\x0a\xff\x7f", b"\x32\x00"),
    ),
)
