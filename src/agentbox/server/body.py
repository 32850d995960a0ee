# SPDX-License-Identifier: MIT
"""Reads request bodies: capped while they arrive, timed, and bounded over all requests together."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import TracebackType

from starlette.requests import Request

from agentbox.errors import OverloadedError
from agentbox.server.problems import Problem

BODIES_AT_ONCE = 16  # that many bodies of the largest size may be in memory; smaller ones accordingly more


class BodyBudget:
    """Bytes of bodies that are held in memory at one time, over all requests.

    Where keys share it (`shared`), a key holds no more than it leaves free: one that floods takes half, a second one a
    third, and there is always something left for the next.
    """

    def __init__(self, max_body_bytes: int, *, shared: bool = False) -> None:
        self.max_body_bytes = max_body_bytes
        self.free_bytes = BODIES_AT_ONCE * max_body_bytes
        self.shared = shared
        self.held_bytes: Counter[str] = Counter()

    def lease(self, owner: str) -> BodyLease:
        """What one request of the key holds; bytes taken from it go back at the end of the `with` block."""
        return BodyLease(self, owner)


class BodyLease:
    """What one request holds of the budget."""

    __slots__ = ("_budget", "_owner", "taken_bytes")

    def __init__(self, budget: BodyBudget, owner: str) -> None:
        self._budget = budget
        self._owner = owner
        self.taken_bytes = 0

    @property
    def max_body_bytes(self) -> int:
        """The most that one request may take."""
        return self._budget.max_body_bytes

    def take(self, size: int) -> None:
        """Count `size` more bytes. Raises Problem (413) for one body too large, OverloadedError for all together."""
        budget = self._budget
        if self.taken_bytes + size > budget.max_body_bytes:
            raise too_large(budget.max_body_bytes)
        wanted = size + budget.held_bytes[self._owner] if budget.shared else size
        if wanted > budget.free_bytes:
            raise OverloadedError(
                "The server holds too many large requests", hint="try again in 2 seconds", retry_after_seconds=2
            )
        budget.free_bytes -= size
        budget.held_bytes[self._owner] += size
        self.taken_bytes += size

    def handed_over(self) -> BodyLease:
        """A lease that holds what this one held, for whoever answers later."""
        later = BodyLease(self._budget, self._owner)
        later.taken_bytes, self.taken_bytes = self.taken_bytes, 0
        return later

    def __enter__(self) -> BodyLease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._budget.free_bytes += self.taken_bytes
        self._budget.held_bytes[self._owner] -= self.taken_bytes
        self.taken_bytes = 0


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
