# SPDX-License-Identifier: MIT
"""What a client raises when the server says no."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class AgentboxHTTPError(RuntimeError):
    """The server answered with a status of 400 or more. `str(error)` is `agentbox HTTP <status>: <detail>`.

    `status`; `code`, `hint` and `request_id` as the server gave them ("" where it gave none); `body`, the whole JSON
    body, or its text. After a timeout (408) `result` is everything that is known about the run, else None. Where the
    server says when to try again (429: it is busy, and nothing ran) `retry_after_seconds` is that time, else None.
    """

    def __init__(self, status: int, body: Any, retry_after: str | None = None) -> None:
        fields: Mapping[str, Any] = body if isinstance(body, dict) else {}
        super().__init__(f"agentbox HTTP {status}: {fields.get('detail', body)}")
        self.status = status
        self.body = body
        self.code = str(fields.get("code", ""))
        self.hint = str(fields.get("hint", ""))
        self.request_id = str(fields.get("request_id", ""))
        self.result: Mapping[str, Any] | None = fields.get("result")
        # The event of a stream has no headers.
        seconds = fields.get("retry_after_seconds", retry_after)
        self.retry_after_seconds = float(seconds) if str(seconds).isdigit() else None


class NoServerError(ConnectionError):
    """Nothing answers at the address: nothing was sent."""


class LostConnectionError(ConnectionError):
    """The connection ended before the answer: whether the server did what was asked is not known. `untouched` is
    true when not one byte of an answer came."""

    def __init__(self, message: str, *, untouched: bool = False) -> None:
        super().__init__(message)
        self.untouched = untouched
