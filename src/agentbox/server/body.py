# SPDX-License-Identifier: MIT
"""Reads request bodies: capped while they arrive, timed, and bounded over all requests together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request

from agentbox.errors import OverloadedError
from agentbox.server.problems import Problem

BODIES_AT_ONCE = 16  # that many bodies of the largest size may be in memory; smaller ones accordingly more


class BodyBudget:
    """Bytes of bodies that are held in memory at one time, over all requests."""

    def __init__(self, max_body_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self.free_bytes = BODIES_AT_ONCE * max_body_bytes

    @contextmanager
    def lease(self) -> Iterator[BodyLease]:
        """Bytes taken from the lease go back at the end."""
        held = BodyLease(self)
        try:
            yield held
        finally:
            self.free_bytes += held.taken_bytes


class BodyLease:
    """What one request holds of the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.max_body_bytes = budget.max_body_bytes
        self.taken_bytes = 0

    def take(self, size: int) -> None:
        """Count `size` more bytes. Raises Problem (413) for one body too large, OverloadedError for all together."""
        if self.taken_bytes + size > self.max_body_bytes:
            raise too_large(self.max_body_bytes)
        if size > self._budget.free_bytes:
            raise OverloadedError(
                "The server holds too many large requests", hint="try again later", retry_after_seconds=2
            )
        self._budget.free_bytes -= size
        self.taken_bytes += size


def too_large(max_body_bytes: int) -> Problem:
    """413 that states the limit."""
    return Problem(
        413,
        f"The request body is larger than {max_body_bytes} bytes",
        "body_too_large",
        "send less; the operator sets the limit with AGENTBOX_MAX_BODY_BYTES",
    )


async def read_body(request: Request, lease: BodyLease, timeout_seconds: float) -> bytes:
    """The whole body. Raises Problem: 413 too large, 408 too slow, 415 encoded; starlette's ClientDisconnect."""
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in {"", "identity"}:
        raise Problem(
            415,
            "Content-Encoding is not supported",
            "unsupported_encoding",
            "send the body without compression",
        )
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and (len(declared) > 18 or int(declared) > lease.max_body_bytes):
        raise too_large(lease.max_body_bytes)
    parts = []
    try:
        async with asyncio.timeout(timeout_seconds):
            async for part in request.stream():
                lease.take(len(part))
                parts.append(part)
    except TimeoutError:
        raise Problem(
            408,
            f"The request body did not arrive within {timeout_seconds:g} seconds",
            "body_timeout",
            "send it faster; the operator sets the time with AGENTBOX_REQUEST_READ_TIMEOUT_SECONDS",
        ) from None
    return b"".join(parts)
