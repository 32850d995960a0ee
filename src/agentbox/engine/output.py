# SPDX-License-Identifier: MIT
"""What a command writes to stdout and stderr, on its way to the caller's own: passed on as it comes, hashed, and kept.

Where both lead to the same place the command gets one pipe for both, so that their order is what it was.
"""

from __future__ import annotations

import os
import stat

from agentbox.engine.keeping import MAX_KEPT_BYTES, Growing
from agentbox.light import asyncio

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from agentbox.engine.keeping import Keeping

_CHUNK_BYTES = 1 << 16
_RETRY_SECONDS = 0.005
_NAMES = {(1,): "stdout", (2,): "stderr", (1, 2): "output", (0, 1, 2): "terminal"}


class Stream:
    """One stream of a command. `numbers` are its descriptors there, `target` where its bytes go on to, or -1."""

    def __init__(self, numbers: tuple[int, ...], target: int) -> None:
        self.name = _NAMES.get(numbers, "output")
        self.numbers = numbers
        self.written = Growing(MAX_KEPT_BYTES)
        # Of a terminal: what a person typed, which is shown on it among what the command wrote.
        self.typed = Growing(MAX_KEPT_BYTES)
        self._target = target
        self._blocks = target >= 0 and not stat.S_ISREG(os.fstat(target).st_mode)
        self._reader, self.writer = -1, -1
        self._following: asyncio.Task[None] | None = None
        # Nothing is alive that could write more.
        self._over = asyncio.Event()

    def open(self) -> None:
        """Make the pipe that the command gets, and follow it."""
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        self._following = asyncio.create_task(self._follow())

    def adopt(self, reader: int) -> None:
        """Follow that descriptor instead, which is this stream's from now on."""
        self._reader = reader
        os.set_blocking(reader, False)
        self._following = asyncio.create_task(self._follow())

    def given(self) -> None:
        """The command has its end now."""
        writer, self.writer = self.writer, -1
        if writer >= 0:
            os.close(writer)

    def take(self, data: bytes) -> None:
        """Bytes that came another way than through the pipe."""
        self.written.feed(data)

    async def finish(self) -> None:
        """Pass on what is left, when nothing that could write more is alive."""
        self.given()
        self._over.set()
        if self._following is not None:
            await self._following

    def record(self, keeping: Keeping | None) -> dict[str, Any]:
        """What the trace says of it; the bytes are kept, if there is a place for them."""
        facts: dict[str, Any] = {"bytes": self.written.size, "sha256": self.written.sha256}
        if keeping is not None and self.written.size:
            facts["kept"] = keeping.keep(self.written.held())
        if self.typed.size:
            facts["typed"] = {"bytes": self.typed.size}
            if keeping is not None:
                facts["typed"]["kept"] = keeping.keep(self.typed.held())
        return facts

    async def _follow(self) -> None:
        from agentbox.engine.capture import may_open_again, readable

        reader, self._reader = self._reader, -1
        try:
            while True:
                try:
                    data = os.read(reader, _CHUNK_BYTES)
                except BlockingIOError:
                    await readable(reader)
                    continue
                except OSError:
                    # EIO: nobody has the terminal open.
                    if await may_open_again(self._over):
                        continue
                    return
                if not data:
                    return
                self.written.feed(data)
                if self._target >= 0 and not await _passed_on(self._target, data, blocks=self._blocks):
                    # As without us: the command learns by its next write that nobody reads it.
                    return
        finally:
            os.close(reader)


def streams_of_this_process() -> list[Stream]:
    """Streams that go on to this process's own stdout and stderr."""
    one, two = os.fstat(1), os.fstat(2)
    if (one.st_dev, one.st_ino, one.st_rdev) == (two.st_dev, two.st_ino, two.st_rdev):
        return [Stream((1, 2), 1)]
    return [Stream((1,), 1), Stream((2,), 2)]


def descriptors(streams: Sequence[Stream]) -> tuple[int, int, int]:
    """The three that a command is started with."""
    ends = {number: stream.writer for stream in streams for number in stream.numbers}
    return 0, ends.get(1, 1), ends.get(2, 2)


async def _passed_on(target: int, data: bytes, *, blocks: bool) -> bool:
    """Write it all, without holding up what else this process does; whether anybody is there to read it."""
    view = memoryview(data)
    while view:
        try:
            written = await _write(target, view) if blocks else os.write(target, view)
        except BlockingIOError:
            # Somebody else made the caller's own stream non-blocking.
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        except OSError:
            return False
        view = view[written:]
    return True


async def _write(target: int, view: memoryview) -> int:
    import select

    _, ready, _ = select.select((), (target,), (), 0)
    # A pipe that has room takes at least a page at once.
    if ready and len(view) <= select.PIPE_BUF:
        return os.write(target, view)
    return await asyncio.to_thread(os.write, target, view)


__all__ = ["Stream", "descriptors", "streams_of_this_process"]
