# SPDX-License-Identifier: MIT
"""Writing to files of the host, whole."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable

# A turn of a thread costs as much as writing a few dozen kilobytes.
_TOGETHER_BYTES = 1 << 20


def write_all(fd: int, data: bytes) -> None:
    """Write all of it. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


async def write_new(pieces: AsyncIterator[bytes], to: str, tell: Callable[[int], None]) -> int:
    """Write pieces to a new file, which is removed if they do not come to their end; how many bytes. `tell` hears how
    many so far. Raises OSError."""
    copied = 0
    waiting: list[bytes] = []
    size = 0
    fd = await asyncio.to_thread(os.open, to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        async for piece in pieces:
            waiting.append(piece)
            size += len(piece)
            if size >= _TOGETHER_BYTES:
                await asyncio.to_thread(write_all, fd, b"".join(waiting))
                waiting.clear()
                copied, size = copied + size, 0
                tell(copied)
        await asyncio.to_thread(write_all, fd, b"".join(waiting))
        tell(copied + size)
    except BaseException:
        os.unlink(to)
        raise
    finally:
        os.close(fd)
    return copied + size
