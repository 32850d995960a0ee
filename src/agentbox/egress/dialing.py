# SPDX-License-Identifier: MIT
"""Connecting to one of several addresses: each gets a head start, the first that answers is taken."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Sequence

HEAD_START_SECONDS = 0.25
DIAL_SECONDS = 15.0
MAX_ADDRESSES = 8


def start(address: str, port: int) -> tuple[socket.socket, bool]:
    """A socket that is being connected, and whether it is connected already, as on the same machine it may be at once.

    Raises OSError.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    end = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        code = end.connect_ex((address, port))
        if code == errno.EINPROGRESS:
            # On the same machine it is connected by now, which only a second call tells.
            code = end.connect_ex((address, port))
        if code not in (0, errno.EALREADY):
            raise OSError(code, os.strerror(code))
    except BaseException:
        end.close()
        raise
    return end, code == 0


async def finish(end: socket.socket) -> socket.socket:
    """The socket once it is connected; takes DIAL_SECONDS at most. Raises OSError, and closes it then."""
    loop = asyncio.get_running_loop()
    writable: asyncio.Future[None] = loop.create_future()
    descriptor = end.fileno()
    loop.add_writer(descriptor, _set, writable)
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            await writable
        code = end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        loop.remove_writer(descriptor)
        end.close()
        raise
    loop.remove_writer(descriptor)
    return end


async def dial(addresses: Sequence[str], port: int) -> tuple[socket.socket, str]:
    """A connected socket and the address that it is connected to.

    Tried in the order given, the next one when the last failed or has not answered for HEAD_START_SECONDS. Raises
    OSError when none answers.
    """
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
    end, connected = start(address, port)
    return end if connected else await finish(end)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


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
