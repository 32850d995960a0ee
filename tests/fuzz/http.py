# SPDX-License-Identifier: MIT
"""HTTP as a guest and as a server may send it."""

from __future__ import annotations

from agentbox.egress.conversation import MAX_PIPELINED, Conversation, Refused
from agentbox.egress.http import (
    CHUNKED,
    BadRequest,
    RequestHead,
    begins_as_http,
    find_head_end,
    read_request_head,
    read_response_head,
)
from agentbox.egress.opening import Opening
from agentbox.policy.hosts import normal_name, parse_address
from tests.fuzz.target import Target

_ALLOWED = ("allowed.test", None)
_COMPLAINT = b"HTTP/1.1 400 \r\n\r\n"
_DENIAL = b"HTTP/1.1 403 \r\n\r\n"


def _check_head(data: bytes) -> None:
    assert begins_as_http(data) in (True, False, None)
    try:
        end = find_head_end(data)
        head = read_request_head(data[:end]) if end >= 0 else None
    except BadRequest:
        return
    if head is None:
        return
    text = data[:end]
    assert text.endswith(b"\r\n\r\n")
    assert text.count(b"\r") == text.count(b"\n") == text.count(b"\r\n")
    assert b"\0" not in text
    # It begins as what it is, or nobody would have judged it.
    assert begins_as_http(text)
    fields = [line.partition(b":") for line in text.split(b"\r\n")[1:-2]]
    names = [name.lower() for name, _, _ in fields]
    assert names.count(b"host") <= 1
    assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1
    if head.host is not None:
        address = parse_address(head.host)
        assert normal_name(head.host) == head.host if address is None else str(address) == head.host
    assert head.body == CHUNKED or head.body >= 0
    assert "?" not in head.path
    # The spelling of a head that an independent, lenient reader sees names the same host.
    for name, _, value in fields:
        if name.lower() == b"host" and not head.connect and head.host is not None and parse_address(head.host) is None:
            assert value.strip().lower().partition(b":")[0].rstrip(b".").decode() == head.host


def _check_conversation(data: bytes) -> None:
    """However a stream is cut, the same is judged, and the same goes on; of a body that turns out broken, more or less
    of what came before the fault."""
    whole, *verdict = _converse(data, [len(data)])
    for cuts in ([1] * min(len(data), 300), [7, 64, 1, 500, 3] * 8):
        out, *other = _converse(data, cuts)
        assert other == verdict
        assert out == whole or (verdict[1] == _COMPLAINT and out.startswith(whole))


def _converse(data: bytes, cuts: list[int]) -> tuple[bytes, list[str], bytes | None]:
    judged: list[str] = []

    def judge(head: RequestHead) -> None:
        judged.append(f"{head.method} {head.host} {head.port} {head.path}")
        if (head.host, head.port) != _ALLOWED and head.host is not None:
            raise Refused(_DENIAL)

    conversation = Conversation(judge, lambda reason: _COMPLAINT)
    out = b""
    at = 0
    answered = 0
    for size in [*cuts, len(data)]:
        out += _feed(conversation, data[at : at + size])
        at += size
    # A server that answers everything lets what waited go on.
    while conversation.pending and conversation.answers.free == 0 and answered < 2 * MAX_PIPELINED + len(data):
        answered += 1
        conversation.answers.feed(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n")
        out += _feed(conversation, b"")
    return out, judged, conversation.refusal


def _feed(conversation: Conversation, data: bytes) -> bytes:
    requests = conversation.requests
    if not data or not requests.free:
        return requests.feed(data)
    # What is free passes without being seen, as a splice does it.
    size = min(requests.free, len(data))
    requests.passed(size)
    return data[:size] + _feed(conversation, data[size:])


def _check_answers(data: bytes) -> None:
    read_response_head(data, to_head=False)
    states = []
    for cuts in ([len(data)], [1] * min(len(data), 300), [5, 90, 2] * 10):
        conversation = Conversation(lambda head: None, lambda reason: _COMPLAINT)
        conversation.requests.feed(
            b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\nHEAD / HTTP/1.1\r\nHost: a.test\r\nUpgrade: x\r\n\r\n"
        )
        at = 0
        for size in [*cuts, len(data)]:
            part = data[at : at + size]
            at += size
            while part and not conversation.accepted:
                free = min(conversation.answers.free, len(part))
                if free:
                    conversation.answers.passed(free)
                    part = part[free:]
                else:
                    assert conversation.answers.feed(part) == part
                    part = b""
        states.append((len(conversation.pending), conversation.accepted, conversation.answers.free))
    assert states[0] == states[1] == states[2]


def _check_opening(data: bytes) -> None:
    """What is decided of a stream does not depend on how it is cut; what goes on before is a beginning of it."""
    decided = [_open(data, cuts) for cuts in ([len(data)], [1] * min(len(data), 400), [3, 1, 40, 2] * 20)]
    assert decided[0] == decided[1] == decided[2]


def _open(data: bytes, cuts: list[int]) -> tuple[str, int] | None:
    found: list[tuple[str, int]] = []
    went = b""

    def other(part: bytes) -> bytes:
        found.append(("other", 0))
        return part

    def http(part: bytes, forwarded: int) -> bytes:
        assert forwarded == len(went)
        found.append(("http", 0))
        return b""

    def malformed(reason: str, tls: bool) -> bytes:
        found.append((f"malformed {reason}" if tls else "malformed", int(tls)))
        return b""

    def hello(seen: object, part: bytes) -> bytes:
        found.append((str(seen), 1))
        return b""

    opening = Opening(hello, http, other, malformed)
    at = 0
    for size in [*cuts, len(data)]:
        if found or at >= len(data):
            break
        went += opening.feed(data[at : at + size])
        at += size
        assert data.startswith(went)
        # What may be HTTP never went on to its end.
        if not found and begins_as_http(went):
            raise AssertionError("a request went on without being judged")
    return found[0] if found else None


_GET = b"GET /a?b HTTP/1.1\r\nHost: allowed.test\r\n\r\n"
_POST = b"POST / HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 5\r\n\r\nhello"
_CHUNKS = (
    b"PUT / HTTP/1.1\r\nHost: allowed.test\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nA: b\r\n\r\n"
)
_UPGRADE = b"GET / HTTP/1.1\r\nHost: allowed.test\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"
_ABSOLUTE = b"GET http://denied.test:81/x HTTP/1.1\r\nHost: denied.test:81\r\n\r\n"
_CONNECT = b"CONNECT allowed.test:443 HTTP/1.1\r\nHost: allowed.test:443\r\n\r\n\x16\x03\x01"
_DENIED = b"GET / HTTP/1.0\r\nHost: denied.test\r\n\r\n"
_TOKENS = (
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"\r\n\r\n", b"Host: denied.test\r\n", b"Host : x\r\n", b"@",
    b"HTTP/1.1", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n",
    b"%0d%0a", b"CONNECT ", b"http://", b"[::1]", b"2130706433", b"RTSP/1.0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", _GET,
    _DENIED,
)  # fmt: skip
_REQUESTS = (_GET, _POST, _CHUNKS, _UPGRADE, _ABSOLUTE, _CONNECT, _DENIED, _GET + _POST + _CHUNKS + _GET + _DENIED)
_ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"HTTP/1.1 204 No\r\n\r\nHTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n\x81",
    b"HTTP/1.0 200 OK\n\nbody",
)

TARGETS = (
    Target("http_head", _check_head, _REQUESTS[:7], _TOKENS),
    Target("http_requests", _check_conversation, _REQUESTS, _TOKENS),
    Target("http_answers", _check_answers, _ANSWERS, _TOKENS),
    Target(
        "first_bytes", _check_opening, (*_REQUESTS[:7], b"EHLO me\r\n", b"\x16\x03\x01\0\x05\x01\0\0\x01\0"), _TOKENS
    ),
)
