# SPDX-License-Identifier: MIT
"""Work in threads on behalf of a run that may be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")


async def in_thread(threads: ThreadPoolExecutor, work: Callable[..., _T], *arguments: object) -> _T:
    """The result of `work` in one of the threads. A cancelled caller waits for work that has begun.

    It must: the teardown closes the workspace's descriptor, the next box gets the same number, and a thread that went
    on would read and write another run's files.
    """
    submitted = threads.submit(work, *arguments)
    try:
        return await asyncio.wrap_future(submitted)
    except asyncio.CancelledError:
        if not submitted.cancel():
            await to_its_end(asyncio.wait({asyncio.wrap_future(submitted)}))
        raise


async def to_its_end(work: Awaitable[_T]) -> _T:
    """Await `work` until it has ended, even while this task is being cancelled; then raise the cancellation."""
    future = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # seen here, so that asyncio does not report it as forgotten
        raise cancelled
    return future.result()
