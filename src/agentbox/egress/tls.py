# SPDX-License-Identifier: MIT
"""What the first bytes of a TLS client say, without I/O: the server name it asks for. And the alert that refuses it.

A ClientHello may come in any number of segments and records. Whatever is not exactly as the standard has it is
malformed: a name that two readers could read differently must not pass.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

# A hello with post-quantum key shares has about 2 KB; session tickets may add some.
MAX_HELLO_BYTES = 16 * 1024
_RECORD_HEADER = 5
_MAX_RECORD = 16 * 1024
# A hello in a thousand records is nobody's; each attempt to read it costs what its records cost.
_MAX_RECORDS = 64
_HANDSHAKE = 22
_MAJOR = 3
_MAJORS = 16
_MAX_MINOR = 4
_CLIENT_HELLO = 1
_EXTENSION_SERVER_NAME = 0
_EXTENSION_ALPN = 16
_EXTENSION_ENCRYPTED_HELLO = 0xFE0D
_HOST_NAME = 0
_MAX_NAME = 255
_EXTENSION = struct.Struct("!HH")
_CUT = "the ClientHello ends within a field"

ALERT_HANDSHAKE_FAILURE = 40
ALERT_ACCESS_DENIED = 49
ALERT_DECODE_ERROR = 50
ALERT_UNRECOGNIZED_NAME = 112
_FATAL = 2


@dataclass(frozen=True, slots=True)
class ClientHello:
    """A complete first message. `server_name` is as it was sent, None without the extension.

    `encrypted` means that an inner hello is hidden in it (or that the client pretends so): `server_name` is then
    the outer name, the one by which the connection finds its server.
    """

    server_name: str | None
    protocols: tuple[bytes, ...] = ()
    encrypted: bool = False


class MalformedHello(ValueError):  # noqa: N818 - what it is, as the refusal says it
    """The bytes begin as TLS does and go on as it does not; `str()` says where."""


def begins_as_tls(data: bytes | bytearray) -> bool | None:
    """Whether a stream that begins with `data` is TLS to some server, however lenient; None while that is open.

    Servers look at the major version of a record at most, and some take any below 16 of the first one.
    """
    if data[:1] != b"\x16":
        return None if not data else False
    if len(data) < 2:
        return None
    if data[1] == _MAJOR or data[1] >= _MAJORS:
        return data[1] == _MAJOR
    return None if len(data) <= _RECORD_HEADER else data[_RECORD_HEADER] == _CLIENT_HELLO


def alert(description: int) -> bytes:
    """The bytes of a fatal alert in clear, as it may answer a ClientHello."""
    return struct.pack("!BHHBB", 21, 0x0303, 2, _FATAL, description)


def read_client_hello(data: bytes | bytearray) -> ClientHello | None:
    """The ClientHello at the beginning of `data`; None when more bytes are needed.

    Raises MalformedHello, also when it would be longer than MAX_HELLO_BYTES.
    """
    message = bytearray()
    at = 0
    wanted = 4
    for _ in range(_MAX_RECORDS):
        if len(message) >= 4:
            if message[0] != _CLIENT_HELLO:
                raise MalformedHello("the first handshake message is no ClientHello")
            wanted = 4 + int.from_bytes(message[1:4], "big")
            if wanted > MAX_HELLO_BYTES:
                raise MalformedHello("the ClientHello is too long")
            if len(message) >= wanted:
                return _body(_Reader(bytes(message[4:wanted])))
        if len(data) - at < _RECORD_HEADER:
            return None
        kind, major, minor, length = struct.unpack_from("!BBBH", data, at)
        if kind != _HANDSHAKE or major != _MAJOR or minor > _MAX_MINOR:
            raise MalformedHello("a record within the ClientHello is of another kind")
        if not 0 < length <= _MAX_RECORD:
            raise MalformedHello("a record within the ClientHello has an impossible length")
        at += _RECORD_HEADER
        message += data[at : at + length]
        if len(data) - at < length and len(message) < wanted:
            return None
        at += length
    raise MalformedHello("the ClientHello is in too many records")


class _Reader:
    """Bytes that are taken from the front; taking more than there are is an error."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise MalformedHello(_CUT)
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        """What follows its own length of `size` bytes."""
        return self.take(self.number(size))

    def __bool__(self) -> bool:
        return self._at < len(self._data)


def _body(reader: _Reader) -> ClientHello:
    reader.take(2 + 32)
    if len(reader.vector(1)) > 32:
        raise MalformedHello("the session has an impossible length")
    ciphers = reader.vector(2)
    if not ciphers or len(ciphers) % 2:
        raise MalformedHello("the list of ciphers is broken")
    if not reader.vector(1):
        raise MalformedHello("the list of compressions is empty")
    if not reader:
        return ClientHello(None)
    extensions = reader.vector(2)
    if reader:
        raise MalformedHello("there are bytes after the extensions")
    seen: set[int] = set()
    name: str | None = None
    protocols: tuple[bytes, ...] = ()
    at = 0
    while at < len(extensions):
        begin = at + 4
        if begin > len(extensions):
            raise MalformedHello(_CUT)
        kind, length = _EXTENSION.unpack_from(extensions, at)
        at = begin + length
        if at > len(extensions):
            raise MalformedHello(_CUT)
        if kind in seen:
            raise MalformedHello("an extension is there twice")
        seen.add(kind)
        if kind == _EXTENSION_SERVER_NAME:
            name = _server_name(extensions[begin:at])
        elif kind == _EXTENSION_ALPN:
            protocols = _protocols(extensions[begin:at])
    return ClientHello(name, protocols, _EXTENSION_ENCRYPTED_HELLO in seen)


def _server_name(content: bytes) -> str:
    outer = _Reader(content)
    entries = _Reader(outer.vector(2))
    if outer:
        raise MalformedHello("there are bytes after the server name")
    if entries.number(1) != _HOST_NAME:
        raise MalformedHello("the server name is of an unknown type")
    name = entries.vector(2)
    if entries:
        raise MalformedHello("there is more than one server name")
    if not 0 < len(name) <= _MAX_NAME or not all(0x21 <= byte < 0x7F for byte in name):
        raise MalformedHello("the server name is no host name")
    return name.decode("ascii")


def _protocols(content: bytes) -> tuple[bytes, ...]:
    outer = _Reader(content)
    entries = _Reader(outer.vector(2))
    if outer:
        raise MalformedHello("there are bytes after the protocols")
    found = []
    while entries:
        found.append(entries.vector(1))
    return tuple(found)
