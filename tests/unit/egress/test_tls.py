# SPDX-License-Identifier: MIT
"""What is read of a TLS client's first bytes."""

from __future__ import annotations

import ssl

import pytest

from agentbox.egress.tls import (
    ALERT_UNRECOGNIZED_NAME,
    MAX_HELLO_BYTES,
    ClientHello,
    MalformedHello,
    alert,
    begins_as_tls,
    read_client_hello,
)


def hello(name: str | None = "allowed.test", *protocols: str) -> bytes:
    """The first message of a real client."""
    context = ssl.create_default_context()
    context.check_hostname = False
    if protocols:
        context.set_alpn_protocols(list(protocols))
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def made(*extensions: tuple[int, bytes], tail: bytes = b"") -> bytes:
    """A minimal hello with these extensions."""
    block = b"".join(kind.to_bytes(2, "big") + len(body).to_bytes(2, "big") + body for kind, body in extensions)
    body = (
        b"\x03\x03" + bytes(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0" + len(block).to_bytes(2, "big") + block + tail
    )
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message


def server_name(*names: bytes, kind: int = 0) -> tuple[int, bytes]:
    entries = b"".join(bytes([kind]) + len(name).to_bytes(2, "big") + name for name in names)
    return 0, len(entries).to_bytes(2, "big") + entries


def in_records(message: bytes, size: int) -> bytes:
    body = message[5:]
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(message[:3] + len(part).to_bytes(2, "big") + part for part in parts)


def test_name_and_protocols_of_a_real_client_are_read() -> None:
    assert read_client_hello(hello("Allowed.Test", "h2", "http/1.1")) == ClientHello(
        "Allowed.Test", (b"h2", b"http/1.1")
    )
    assert read_client_hello(hello(None)) == ClientHello(None)


def test_hello_is_read_only_when_it_is_whole() -> None:
    whole = hello()
    assert all(read_client_hello(whole[:end]) is None for end in range(len(whole)))
    assert read_client_hello(whole + b"\x14\x03\x03\0\x01\x01") == read_client_hello(whole)


@pytest.mark.parametrize("size", [16, 100, 300])
def test_hello_in_several_records_is_the_same_hello(size: int) -> None:
    assert read_client_hello(in_records(hello(), size)) == read_client_hello(hello())


def test_outer_name_of_an_encrypted_hello_is_its_name() -> None:
    read = read_client_hello(made(server_name(b"public.test"), (0xFE0D, b"\0" * 40)))
    assert read == ClientHello("public.test", encrypted=True)


@pytest.mark.parametrize(
    "data",
    [
        in_records(made(server_name(b"a" * 80)), 1),
        made(server_name(b"allowed.test", b"denied.test")),
        made(server_name(b"allowed.test"), server_name(b"denied.test")),
        made(server_name(b"denied.test\0.allowed.test")),
        made(server_name(b"denied.test .allowed.test")),
        made(server_name("dënied.test".encode())),
        made(server_name(b"")),
        made((0, b"")),
        made((0, b"\0\x05\0\0\x09abc")),
        made(server_name(b"allowed.test", kind=1)),
        made((0, server_name(b"allowed.test")[1] + b"x")),
        made((16, b"\0\x03\x09h2")),
        made(tail=b"x"),
        made()[:-2] + b"\0\x09",
        b"\x16\x03\x01\0\x04\x02\0\0\0",
        b"\x16\x03\x01\0\0" + made(),
        b"\x16\x03\x01\x40\x01" + bytes(20),
        b"\x16\x03\x01\0\x04\x01" + MAX_HELLO_BYTES.to_bytes(3, "big"),
        in_records(made(server_name(b"a.test")), 20)[:40] + b"\x17" + in_records(made(server_name(b"a.test")), 20)[26:],
    ],
)
def test_hello_that_two_readers_could_read_differently_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedHello):
        read_client_hello(data)


def test_only_a_handshake_of_tls_begins_as_tls() -> None:
    assert begins_as_tls(b"") is None
    assert begins_as_tls(b"\x16") is None
    assert begins_as_tls(b"\x16\x03") is True
    assert begins_as_tls(b"\x16\x03\x01") is True
    assert not any(begins_as_tls(data) for data in (b"\x15\x03\x01", b"\x16\x16\x01", b"GET", b"SSH-2.0"))


@pytest.mark.parametrize("version", [b"\x03\x05", b"\x03\xff", b"\x02\x01", b"\x04\x01", b"\x0f\xff"])
def test_hello_in_a_record_of_another_version_which_some_servers_take_is_refused(version: bytes) -> None:
    data = b"\x16" + version + hello()[3:]
    assert begins_as_tls(data) is True
    with pytest.raises(MalformedHello):
        read_client_hello(data)


def test_number_that_only_begins_like_a_record_is_no_hello() -> None:
    assert begins_as_tls(b"\x16\x00\x00\x00\x00") is None
    assert begins_as_tls(b"\x16\x00\x00\x00\x00\x02") is False


def test_alert_is_fatal_and_in_clear() -> None:
    assert alert(ALERT_UNRECOGNIZED_NAME) == b"\x15\x03\x03\x00\x02\x02\x70"
