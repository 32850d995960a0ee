# SPDX-License-Identifier: MIT
"""What is read of requests and answers, and what begins as HTTP. tests/integration/egress has what is refused."""

from __future__ import annotations

import pytest

from agentbox.egress.http import (
    CHUNKED,
    UNTIL_CLOSE,
    BadRequest,
    ChunkReader,
    RequestHead,
    ResponseHead,
    begins_as_http,
    find_head_end,
    read_authority,
    read_request_head,
    read_response_head,
)


def head(line: str, *fields: str) -> RequestHead:
    return read_request_head("\r\n".join([line, *fields, "", ""]).encode("latin-1"))


def test_request_names_one_host_in_its_usual_spelling() -> None:
    assert head("GET /a?secret HTTP/1.1", "Host: ALLOWED.test.:8080") == RequestHead(
        "GET", "/a", "allowed.test", 8080, 0
    )
    assert head("GET / HTTP/1.1", "Host: [::FFFF:127.0.0.1]").host == "127.0.0.1"
    assert head("GET / HTTP/1.0").host is None
    assert head("OPTIONS * HTTP/1.1", "Host: a.test").path == "*"


def test_target_with_a_host_wins_over_nothing_and_must_agree_with_host() -> None:
    read = head("GET http://A.test/b?c HTTP/1.1", "Host: a.test:80")
    assert (read.host, read.port, read.path, read.absolute) == ("a.test", 80, "/b", True)
    assert head("GET HTTP://a.test:81?c HTTP/1.0").path == "/"
    for host in ("b.test", "a.test:81"):
        with pytest.raises(BadRequest):
            head("GET http://a.test/ HTTP/1.1", f"Host: {host}")


def test_body_is_counted_or_chunked() -> None:
    assert head("PUT / HTTP/1.1", "Host: a", "Content-Length: 12").body == 12
    assert head("PUT / HTTP/1.1", "Host: a", "transfer-encoding: Chunked").body == CHUNKED
    with pytest.raises(BadRequest):
        head("PUT / HTTP/1.0", "Host: a", "Transfer-Encoding: chunked")


@pytest.mark.parametrize(
    "text", [b"a.test:", b"a.test:0", b"a.test:65536", b":80", b"a..test", b"[a]", b"[::1", b"1.2.3", b"a/b"]
)
def test_what_is_more_or_less_than_a_host_and_a_port_is_refused(text: bytes) -> None:
    with pytest.raises(BadRequest):
        read_authority(text)


def test_end_of_a_head_is_found_however_it_is_cut() -> None:
    data = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nrest"
    for cut in range(len(data)):
        first = find_head_end(data[:cut])
        assert first in (-1, 27)
        assert find_head_end(data, cut if first < 0 else 0) == 27


def test_head_of_white_space_is_read_in_time_that_grows_with_its_length() -> None:
    with pytest.raises(BadRequest):
        read_request_head(b"GET / HTTP/1.1\r\nA:" + b" \t" * 30_000 + b"\x01\r\n\r\n")
    assert read_response_head(b"HTTP/1.1 204 No\r\n" + b"a" * 60_000 + b"\r\n\r\n", to_head=False) is not None
    assert read_response_head(b"HTTP/1.1 200 OK\r\n" + b"a" * 60_000 + b"\r\n\r\n", to_head=False) is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", ResponseHead(200, 3)),
        (b"HTTP/1.1 200\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", ResponseHead(200, CHUNKED)),
        (b"HTTP/1.0 200 OK\nA: b\n\n", ResponseHead(200, UNTIL_CLOSE)),
        (b"HTTP/1.1 304 No\r\nContent-Length: 3\r\n\r\n", ResponseHead(304, 0)),
        (b"HTTP/1.1 101 Switching\r\n\r\n", ResponseHead(101, 0)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", None),
        (b"ICY 200 OK\r\n\r\n", None),
    ],
)
def test_answer_says_how_long_it_is(text: bytes, expected: ResponseHead | None) -> None:
    assert read_response_head(text, to_head=False) == expected


def test_answer_to_head_has_no_body() -> None:
    assert read_response_head(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", to_head=True) == ResponseHead(200, 0)


def test_chunked_body_ends_after_its_trailers_however_it_is_cut() -> None:
    body = b"5;a=b\r\nhello\r\n10\r\n0123456789abcdef\r\n0\r\nX: y\r\n\r\n"
    for cut in range(len(body)):
        reader = ChunkReader()
        at = reader.read(body[:cut], 0)
        assert not reader.done
        assert reader.read(body + b"next", at) == len(body)
        assert reader.done


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n", b"GET /", b"POST http://a", b"CONNECT a:1", b"BREW x HTTP/1.1\r\n",
        b"\r\n\r\nGET / HTTP/1.0\r\n", b" GET / HTTP/1.1\r\n", b"brew x http/1.1\r\n", b"GET  x\tHTTP/1.1\n",
        b"PRI * HTTP/2.0\r\n", b"B" * 300 + b" / HTTP/1.1\n",
    ],
)  # fmt: skip
def test_what_a_lenient_server_takes_for_http_begins_as_http(data: bytes) -> None:
    assert begins_as_http(data) is True


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9\r\n", b"EHLO me\r\n", b"USER me\r\n", b"*1\r\n$4\r\n", b"OPTIONS rtsp://a RTSP/1.0\r\n",
        b"\0\0\0\x08", b"get key\r\n", b"{\"json\": 1}", b"a001 LOGIN x y\r\n", b"GET key\r\n", b"x" * 65 + b"\r\n",
    ],
)  # fmt: skip
def test_other_protocols_do_not_begin_as_http(data: bytes) -> None:
    assert begins_as_http(data) is False


@pytest.mark.parametrize(
    "data", [b"", b"\r\n", b"G", b"GET", b"GET ", b"BREW / HTTP/1.", b"OPTIONS *", b"PING me", b"x" * 65]
)
def test_beginning_of_a_line_is_left_open(data: bytes) -> None:
    assert begins_as_http(data) is None
