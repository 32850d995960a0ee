# SPDX-License-Identifier: MIT
"""Which requests a keeper takes the short way: those of a server, whole, and no others."""

from __future__ import annotations

import pytest

from agentbox.server.sandboxes.express import Asked, read

HEAD = (
    b"POST /v1/sandboxes/sbx-0123456789abcdef/exec HTTP/1.1\r\nhost: keeper\r\nx-agentbox-owner: me\r\n"
    b"x-request-id: r1\r\ncontent-type: application/json\r\n"
)
BODY = b'{"command": "true"}\r\n\r\n'
WHOLE = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


def test_a_request_of_a_server_is_read_as_it_was_passed_on() -> None:
    assert read(WHOLE) == Asked("me", "sbx-0123456789abcdef", "r1", "application/json", BODY)


@pytest.mark.parametrize(
    "data",
    [
        WHOLE[:-1],
        WHOLE + b"POST",
        WHOLE[:40],
        WHOLE.replace(b"/exec", b"/commands"),
        WHOLE.replace(b"/exec", b"/exec?a=b"),
        WHOLE.replace(b"sbx-0", b"sbx-%30"),
        WHOLE.replace(b"POST", b"GET"),
        WHOLE.replace(b"x-agentbox-owner: me\r\n", b""),
        WHOLE.replace(b"host: keeper", b"host: keeper\r\ncontent-encoding: gzip"),
        WHOLE.replace(b"host: keeper", b"host: keeper\r\nhost: keeper"),
        WHOLE.replace(b"content-length: ", b"content-length: +"),
        HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        HEAD + b"\r\n",
    ],
    ids=[
        "cut off",
        "more than one",
        "half a head",
        "another route",
        "a query",
        "an escaped path",
        "another method",
        "nobody's",
        "an encoded body",
        "a header twice",
        "a length that is none",
        "chunks",
        "no length",
    ],
)
def test_what_is_not_one_whole_such_request_takes_the_usual_way(data: bytes) -> None:
    assert read(data) is None
