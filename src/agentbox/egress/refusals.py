# SPDX-License-Identifier: MIT
"""What a guest is told when something is not passed on, in the words of the protocol that it speaks."""

from __future__ import annotations

import json
from collections.abc import Mapping

from agentbox.egress.events import EgressEvent

PLAIN_REQUEST = "send HTTP/1.1 with one Host, CRLF line ends, and either Content-Length or chunked"
_REASONS = {400: "Bad Request", 403: "Forbidden", 408: "Request Timeout", 502: "Bad Gateway"}


def denied(event: EgressEvent, *, head_only: bool = False) -> bytes:
    """The HTTP answer to a request that no rule allows: 403 with the object that agents read."""
    return _answer(403, event.refusal(), head_only=head_only)


def bad_request(reason: str) -> bytes:
    """The HTTP answer to what could be read in more than one way."""
    return _answer(400, {"error": "bad_request", "reason": reason, "hint": PLAIN_REQUEST, "retry": False})


def too_slow() -> bytes:
    """The HTTP answer to a request whose head did not come in time."""
    return _answer(408, {"error": "request_timeout", "hint": "send the whole head at once", "retry": True})


def unreachable(host: str, port: int, reason: str, *, head_only: bool = False) -> bytes:
    """The HTTP answer when an allowed host cannot be reached."""
    hint = f"the policy allows {host}:{port}; it is not there, or not reachable from where the box runs"
    body = {"error": "unreachable", "host": host, "reason": reason, "hint": hint, "retry": True}
    return _answer(502, body, head_only=head_only)


def _answer(status: int, body: Mapping[str, object], *, head_only: bool = False) -> bytes:
    content = json.dumps(body).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + (b"" if head_only else content)
