# SPDX-License-Identifier: MIT
"""Connecting to one of several addresses: each gets a head start, the first that answers is taken."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

HEAD_START_SECONDS = 0.25
DIAL_SECONDS = 15.0
MAX_ADDRESSES = 8


async def dial(addresses: Sequence[str], port: int) -> tuple[socket.socket, str]:
    """A connected socket and the address that it is connected to.

    Tried in the order given, the next one when the last failed or has not answered for HEAD_START_SECONDS. Raises
    OSError, TimeoutError after DIAL_SECONDS, when none answers.
    """
    async with asyncio.timeout(DIAL_SECONDS):
        if len(addresses) == 1:
            return await _connect(addresses[0], port), addresses[0]
        return await _first(addresses[:MAX_ADDRESSES], port)


async def dial_unix(path: str) -> socket.socket:
    """A socket connected to the UNIX socket at `path`. Raises OSError."""
    loop = asyncio.get_running_loop()
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            while True:
                try:
                    await loop.sock_connect(end, path)
                    return end
                except BlockingIOError:
                    # Its queue is full; the kernel has no event for room in it.
                    await asyncio.sleep(0.01)
    except BaseException:
        end.close()
        raise


async def _connect(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    end = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await asyncio.get_running_loop().sock_connect(end, (address, port))
    except BaseException:
        end.close()
        raise
    return end


async def _first(addresses: Sequence[str], port: int) -> tuple[socket.socket, str]:
    left = list(addresses)
    running: dict[asyncio.Task[socket.socket], str] = {}
    failure = OSError("there is no address to connect to")
    try:
        while left or running:
            if left:
                address = left.pop(0)
                running[asyncio.ensure_future(_connect(address, port))] = address
            done, _ = await asyncio.wait(
                running, timeout=HEAD_START_SECONDS if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for attempt in done:
                address = running.pop(attempt)
                error = attempt.exception()
                if error is None:
                    return attempt.result(), address
                failure = error if isinstance(error, OSError) else failure
        raise failure
    finally:
        for attempt in running:
            attempt.add_done_callback(_close_result)
            attempt.cancel()


def _close_result(attempt: asyncio.Task[socket.socket]) -> None:
    """A connection that was made after another was taken."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()
