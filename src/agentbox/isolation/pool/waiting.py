# SPDX-License-Identifier: MIT
"""Waiting for one future for a bounded time, at a fraction of what asyncio.timeout costs."""

from __future__ import annotations

import asyncio
from typing import TypeVar

_T = TypeVar("_T")


async def within(future: asyncio.Future[_T], seconds: float) -> _T:
    """The result of the future. Raises TimeoutError when it has none after so many seconds; the future, which must be
    the caller's own, has that exception then."""

    def expire() -> None:
        if not future.done():
            future.set_exception(TimeoutError())

    handle = asyncio.get_running_loop().call_later(seconds, expire)
    try:
        return await future
    finally:
        handle.cancel()
