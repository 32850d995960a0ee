# SPDX-License-Identifier: MIT
"""The rest of a long body, taken from its connection as it lies in the kernel: no byte of it is copied to this process.

The parser does not see it, so that the connection closes after the answer. Only Linux can splice; elsewhere, and where
the length is not known, a body goes the ordinary way.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
from collections.abc import Callable

from agentbox.records import dataclass

TAKE_REST = "take_rest"  # the name in an ASGI scope's state of what gives BodyRest, or None
CAN_SPLICE = hasattr(os, "splice")
_PIPE_BYTES = 1 << 20
# So much is moved before others have a turn.
_STEP_BYTES = 8 << 20
# A thread that moves bytes to a disk waits so long for more of them before it is given back.
_PATIENCE_MS = 20
_SOURCE, _SINK = "source", "sink"


class StalledError(Exception):
    """Nothing came for as long as it is waited."""


@dataclass(frozen=True, slots=True)
class BodyRest:
    """`buffered` came already, `left` bytes follow on the socket `source`, which is the taker's to close. `ended` is to
    be called once: with True when all of it was taken, else the rest is dropped as it comes."""

    source: int
    buffered: bytes
    left: int
    ended: Callable[[bool], None]


async def pass_on(
    rest: BodyRest, sink: int, stall_seconds: float, *, to_file: bool, check: Callable[[], None] = lambda: None
) -> None:
    """Move what is left to `sink`, a file or a socket that does not block. `check` is called now and then, and may
    raise. Raises StalledError, EOFError when the sender is gone, OSError of the sink."""
    splice = _Splice(rest.source, sink)
    try:
        left = rest.left
        while left:
            most = min(left, _STEP_BYTES)
            moved, waits_for = await _in_thread(splice, most) if to_file else splice.move(most, 0)
            left -= moved
            check()
            if waits_for == _SOURCE:
                await _readable(rest.source, stall_seconds)
            elif waits_for == _SINK:
                await _writable(sink)
            else:
                await asyncio.sleep(0)
    finally:
        splice.close()


class _Splice:
    """Bytes from one descriptor to another through a pipe."""

    def __init__(self, source: int, sink: int) -> None:
        self._source = source
        self._sink = sink
        self._held = 0
        self._out, self._into = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        with contextlib.suppress(OSError):
            # Refused to those who have too many; then it is smaller.
            fcntl.fcntl(self._into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def move(self, most: int, patience_ms: int) -> tuple[int, str]:
        """Move what can be moved without waiting for longer; how many bytes have left, and what must be waited for."""
        moved = 0
        while moved < most:
            if not self._held:
                try:
                    self._held = os.splice(self._source, self._into, min(most - moved, _PIPE_BYTES))
                except BlockingIOError:
                    if patience_ms and _comes(self._source, patience_ms):
                        continue
                    return moved, _SOURCE
                if not self._held:
                    raise EOFError
            try:
                sent = os.splice(self._out, self._sink, self._held)
            except BlockingIOError:
                return moved, _SINK
            self._held -= sent
            moved += sent
        return moved, ""

    def close(self) -> None:
        """Close the pipe, with what is in it."""
        os.close(self._out)
        os.close(self._into)


def _comes(fd: int, patience_ms: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(patience_ms))


async def _in_thread(splice: _Splice, most: int) -> tuple[int, str]:
    moving = asyncio.get_running_loop().run_in_executor(None, splice.move, most, _PATIENCE_MS)
    try:
        return await asyncio.shield(moving)
    except asyncio.CancelledError:
        # It uses the descriptors until it ends.
        await asyncio.wait((moving,))
        raise


async def _readable(fd: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(fd, _set, ready)
    try:
        async with asyncio.timeout(seconds):
            await ready
    except TimeoutError:
        raise StalledError from None
    finally:
        loop.remove_reader(fd)


async def _writable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_writer(fd, _set, ready)
    try:
        await ready
    finally:
        loop.remove_writer(fd)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
