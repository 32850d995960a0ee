# SPDX-License-Identifier: MIT
"""The first bytes of a TLS client."""

from __future__ import annotations

import ssl

from agentbox.egress.tls import MAX_HELLO_BYTES, MalformedHello, begins_as_tls, read_client_hello
from tests.fuzz.target import Target


def _check(data: bytes) -> None:
    first = _read(data)
    # Whatever is said of a beginning holds of every longer one: a hello in pieces is read as one.
    for end in {0, 1, 2, 3, 5, 9, 43, 60, len(data) // 2, len(data) - 1, len(data)}:
        part = _read(data[:end])
        if part is not None:
            assert _read(data) == part
    assert _read(data + b"\x17\x03\x03\0\1x") in (first, None) or first is None
    if isinstance(first, tuple):
        name = first[0]
        assert name is None or (name.isascii() and name.isprintable() and 0 < len(name) <= 255)
    if isinstance(first, tuple):
        assert begins_as_tls(data)


def _read(data: bytes) -> tuple[str | None, bool] | str | None:
    try:
        hello = read_client_hello(data)
    except MalformedHello as error:
        return str(error)
    if hello is None:
        assert len(data) < 2 * MAX_HELLO_BYTES + 64 * 5
        return None
    return hello.server_name, hello.encrypted


def _hello(name: str | None, protocols: list[str]) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname = False
    if protocols:
        context.set_alpn_protocols(protocols)
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake needs two sides")


def _in_records(hello: bytes, size: int) -> bytes:
    """The same hello in records of `size` bytes."""
    body = hello[5:]
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(hello[:3] + len(part).to_bytes(2, "big") + part for part in parts)


_SEED = _hello("allowed.test", ["h2", "http/1.1"])

TARGETS = (
    Target(
        "tls_hello",
        _check,
        (_SEED, _hello(None, []), _in_records(_SEED, 16), _in_records(_SEED, 100), _SEED[:80]),
        (
            b"\0\0",
            b"\0\x0d\0\x0b\0\0\x08",
            b"denied.test",
            b"\xfe\x0d",
            b"\x16\x03\x01",
            b"\x16\x03\x03\0\x01",
            b"\0\x10",
        ),
    ),
)
