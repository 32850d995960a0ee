# SPDX-License-Identifier: MIT
"""HTTP/1.x as two readers can only read it one way, without I/O: heads, bodies' framing, and what begins as HTTP.

Requests are read strictly and forwarded as they came: a request that some server could read as two, or as one for
another host, is a BadRequest. Answers come from a server that was allowed; what is odd in them only ends inspection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentbox.policy.hosts import normal_name, parse_address

MAX_HEAD_BYTES = 64 * 1024
# A line that may yet turn out to be a request line is looked at so far.
MAX_FIRST_LINE_BYTES = 16 * 1024
MAX_CHUNK_LINE_BYTES = 4 * 1024
HTTP_PORT = 80
CHUNKED = -1
UNTIL_CLOSE = -2

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb"{1,64}) ([\x21-\x7e\x80-\xff]+) HTTP/([0-9])\.([0-9])\r\n")
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9][0-9][0-9])(?: [^\r\n]*)?\r?\n")
# No part of it may match what its neighbour matches: a head of white space must not cost its length squared.
_FIELD = re.compile(rb"(" + _TOKEN + rb"+):([^\x00-\x08\x0a-\x1f\x7f]*)\r\n")
_AUTHORITY = re.compile(rb"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
_ABSOLUTE = re.compile(rb"http://([^/?#]*)(?:[/?#]|\Z)", re.IGNORECASE)
_LONE = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)|\x00")
_DIGITS = re.compile(rb"[0-9]{1,18}\Z")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\x00-\x08\x0a-\x1f\x7f]*)?\r\n\Z")
_NO_REQUEST_LINE = "the request line is not METHOD TARGET HTTP/1.1"
_CHUNK_TOO_LONG = "a chunk is longer than it said"
_HEAD_END = b"\r\n\r\n"

_WORD = re.compile(_TOKEN + rb"+")
_VERSION = re.compile(rb"[ \t]HTTP/[0-9]", re.IGNORECASE)
_SPACE = b" \t\r\n\v\f"
_METHODS = frozenset(
    b"GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH PROPFIND PROPPATCH MKCOL COPY MOVE LOCK UNLOCK".split()
)


class BadRequest(ValueError):  # noqa: N818 - what it is, as the answer says it
    """A request that will not be forwarded; `str()` says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request's first lines.

    `host` is the one host that it names, in its usual spelling, and `port` the port with it; None where it names
    none (HTTP/1.0 without `Host`) or leaves the port out. `body` is the number of bytes that follow, or CHUNKED.
    """

    method: str
    path: str
    host: str | None
    port: int | None
    body: int
    absolute: bool = False
    connect: bool = False
    upgrade: bool = False


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """An answer's first lines. `body` is the number of bytes that follow, CHUNKED or UNTIL_CLOSE."""

    status: int
    body: int


def begins_as_http(data: bytes | bytearray) -> bool | None:
    """Whether a stream that begins with `data` is HTTP to some server, however lenient; None while that is open.

    Decided by the first line, so a text that never ends its line stays open: give up at MAX_FIRST_LINE_BYTES.
    """
    start = 0
    while start < len(data) and data[start] in _SPACE:
        start += 1
    end = data.find(b"\n", start)
    line = bytes(data[start:] if end < 0 else data[start:end])
    word = _WORD.match(line)
    if word is None:
        return None if not line else False
    rest = line[word.end() :]
    if not rest:
        return None if end < 0 else False
    if rest[0] not in _SPACE:
        return False
    target = rest.lstrip(_SPACE).lower()
    if word[0] == b"CONNECT" or (word[0] in _METHODS and target.startswith((b"/", b"http"))):
        return True
    if b"\0" in rest:
        return False
    return None if end < 0 else _VERSION.search(rest) is not None


def begins_as_http2(data: bytes | bytearray) -> bool:
    """Whether a stream is HTTP/2 in clear by prior knowledge."""
    return data.startswith(b"PRI * HTTP/2.0\r\n\r\n")


def find_head_end(data: bytes | bytearray, seen: int = 0) -> int:
    """Where the head at the beginning of `data` ends, -1 while it does not; `seen` bytes were looked at before.

    Raises BadRequest for a line end or a NUL that cannot be in a head, and for a head longer than MAX_HEAD_BYTES.
    """
    begin = max(0, seen - len(_HEAD_END) + 1)
    at = data.find(_HEAD_END, begin)
    end = at + len(_HEAD_END) if at >= 0 else -1
    if data.find(b"\n", begin) >= 0 and not _REQUEST_LINE.match(data):
        raise BadRequest(_NO_REQUEST_LINE)
    if _LONE.search(data, begin, end if end >= 0 else len(data)):
        raise BadRequest("there is a line end without its other half, or a NUL, in the head")
    if (end if end >= 0 else len(data)) > MAX_HEAD_BYTES:
        raise BadRequest("the head is too long")
    return end


def read_request_head(head: bytes) -> RequestHead:
    """What a complete head, with its empty line, says. Raises BadRequest."""
    line = _REQUEST_LINE.match(head)
    if line is None:
        raise BadRequest(_NO_REQUEST_LINE)
    method, target, major, minor = line.groups()
    if major != b"1" or minor not in b"01":
        raise BadRequest("only HTTP/1.0 and HTTP/1.1 are spoken here")
    fields = _fields(head, line.end())
    host = fields.get(b"host")
    body = _request_body(fields, minor == b"0")
    if host is None and minor == b"1":
        raise BadRequest("there is no Host")
    named = None if host is None else read_authority(host)
    if method == b"CONNECT":
        return _connect_head(target, named, body)
    absolute = target[:1] not in (b"/", b"*")
    if absolute:
        named = _absolute(target, named)
    elif target[:1] == b"*" and (target != b"*" or method != b"OPTIONS"):
        raise BadRequest("the target is no path")
    name, port = named or (None, None)
    path = b"*" if target == b"*" else _path(target)
    return RequestHead(
        method.decode(), path.decode("latin-1"), name, port, body, absolute=absolute, upgrade=b"upgrade" in fields
    )


def read_response_head(head: bytes, *, to_head: bool) -> ResponseHead | None:
    """What a complete head of an answer says, None when it is not understood; `to_head`: HEAD was asked."""
    line = _STATUS_LINE.match(head)
    if line is None:
        return None
    status = int(line[1])
    if to_head or status < 200 or status in (204, 304):
        return ResponseHead(status, 0)
    lengths: set[bytes] = set()
    coding = None
    for field in head[line.end() :].split(b"\n"):
        name, _, value = field.partition(b":")
        lowered = name.lower()
        if lowered == b"content-length":
            lengths.add(value.strip(b" \t\r"))
        elif lowered == b"transfer-encoding":
            coding = value.strip(b" \t\r").lower()
    if coding is not None:
        return ResponseHead(status, CHUNKED if coding.endswith(b"chunked") else UNTIL_CLOSE)
    if not lengths:
        return ResponseHead(status, UNTIL_CLOSE)
    length = lengths.pop()
    return None if lengths or not _DIGITS.match(length) else ResponseHead(status, int(length))


def read_authority(text: bytes) -> tuple[str, int | None]:
    """Host in its usual spelling and port of `host[:port]`. Raises BadRequest for anything more or else."""
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        raise BadRequest("the host is not NAME or NAME:PORT")
    spelling = found[1].decode("ascii")
    address = parse_address(spelling)
    host = normal_name(spelling) if address is None else str(address)
    if host is None:
        raise BadRequest("the host is neither a name nor an address in its usual form")
    port = None if found[2] is None else int(found[2])
    if port is not None and not 1 <= port <= 65535:
        raise BadRequest("there is no such port")
    return host, port


def _fields(head: bytes, at: int) -> dict[bytes, bytes]:
    """The fields that decide something; each may be there once."""
    found: dict[bytes, bytes] = {}
    end = len(head) - 2
    while at < end:
        field = _FIELD.match(head, at)
        if field is None:
            raise BadRequest("a header field is not NAME: VALUE on one line")
        at = field.end()
        name = field[1].lower()
        if name in _DECIDING:
            if name in found and name != b"upgrade":
                raise BadRequest(f"{field[1].decode()} is there twice")
            found[name] = field[2].strip(b" \t")
    return found


_DECIDING = frozenset({b"host", b"content-length", b"transfer-encoding", b"upgrade"})


def _request_body(fields: dict[bytes, bytes], old: bool) -> int:
    length = fields.get(b"content-length")
    coding = fields.get(b"transfer-encoding")
    if coding is not None:
        if length is not None:
            raise BadRequest("there are both Content-Length and Transfer-Encoding")
        if coding.lower() != b"chunked" or old:
            raise BadRequest("the only Transfer-Encoding is chunked, in HTTP/1.1")
        return CHUNKED
    if length is None:
        return 0
    if not _DIGITS.match(length):
        raise BadRequest("Content-Length is no number")
    return int(length)


def _connect_head(target: bytes, named: tuple[str, int | None] | None, body: int) -> RequestHead:
    host, port = read_authority(target)
    if port is None:
        raise BadRequest("CONNECT needs HOST:PORT")
    if named is not None and (named[0] != host or named[1] not in (None, port)):
        # Judged by the target all the same: a denial says more than a complaint about Host.
        return RequestHead("CONNECT", "", host, port, body, connect=True, absolute=True)
    return RequestHead("CONNECT", "", host, port, body, connect=True)


def _absolute(target: bytes, named: tuple[str, int | None] | None) -> tuple[str, int | None]:
    found = _ABSOLUTE.match(target)
    if found is None:
        raise BadRequest("the target is neither a path nor an http:// address")
    host, port = read_authority(found[1])
    port = HTTP_PORT if port is None else port
    if named is not None and (named[0] != host or (HTTP_PORT if named[1] is None else named[1]) != port):
        raise BadRequest("the target and Host name different hosts")
    return host, port


def _path(target: bytes) -> bytes:
    """The path alone: a query may hold secrets."""
    if target[:1] != b"/":
        target = target[len(b"http://") :]
        target = target[len(re.split(rb"[/?#]", target, maxsplit=1)[0]) :] or b"/"
    return re.split(rb"[?#]", target, maxsplit=1)[0] or b"/"


class ChunkReader:
    """Where a chunked body ends. `left` bytes of the present chunk may pass without being looked at."""

    __slots__ = ("_state", "done", "left")

    _SIZE, _DATA, _AFTER, _TRAILER = range(4)

    def __init__(self) -> None:
        self.left = 0
        self.done = False
        self._state = self._SIZE

    def passed(self, size: int) -> None:
        """So many of the `left` bytes went by."""
        self.left -= size
        if not self.left:
            self._state = self._AFTER

    def read(self, data: bytes | bytearray, at: int) -> int:
        """Read on from `at`; up to where it was read, which is the end of the body, of `data`, or of its last complete
        line. What was not read must be given again with more. Raises BadRequest."""
        while at < len(data) and not self.done:
            if self._state == self._DATA:
                size = min(self.left, len(data) - at)
                self.passed(size)
                at += size
                continue
            end = data.find(b"\n", at, at + MAX_CHUNK_LINE_BYTES)
            if end < 0:
                if len(data) - at >= MAX_CHUNK_LINE_BYTES:
                    raise BadRequest("a line within the chunked body is too long")
                if self._state == self._AFTER and data[at:] != b"\r":
                    raise BadRequest(_CHUNK_TOO_LONG)
                break
            self._take(bytes(data[at : end + 1]))
            at = end + 1
        return at

    def _take(self, line: bytes) -> None:
        if self._state == self._AFTER:
            if line != b"\r\n":
                raise BadRequest(_CHUNK_TOO_LONG)
            self._state = self._SIZE
        elif self._state == self._SIZE:
            size = _CHUNK_SIZE.match(line)
            if size is None:
                raise BadRequest("the size of a chunk is no number")
            self.left = int(size[1], 16)
            self._state = self._DATA if self.left else self._TRAILER
        elif line == b"\r\n":
            self.done = True
        elif not _FIELD.fullmatch(line):
            raise BadRequest("a trailer is not NAME: VALUE on one line")
