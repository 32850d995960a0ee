# SPDX-License-Identifier: MIT
"""A first command for an agent that waits in stock, so that the first one of its later owner is not the first."""

from __future__ import annotations

import asyncio

from agentbox.errors import SandboxError
from agentbox.isolation.durable import WORKSPACE, AgentStream
from agentbox.sandbox import frames
from agentbox.sandbox.frames import StartFlag, ToHost

# One that no link gets to: each counts from 1.
_ID = 0xFFFF_FFFF
_ARGV = ("/bin/sh", "-c", "echo 1")
# More than once: threads of the box's kernel are made as they are missed.
_TIMES = 2
_TIMEOUT_SECONDS = 10.0


class RehearsedStream:
    """A stream whose agent has said hello already: whoever reads it first reads that again."""

    def __init__(self, stream: AgentStream, hello: bytes) -> None:
        self._stream = stream
        self._hello = hello

    async def read(self) -> bytes:
        """See AgentStream."""
        if self._hello:
            hello, self._hello = self._hello, b""
            return hello
        return await self._stream.read()

    def write_now(self, data: bytes) -> int:
        """Write so much of it as there is room for at once; how much that is."""
        written: int = getattr(self._stream, "write_now", lambda _: 0)(data)
        return written

    async def write(self, data: bytes) -> None:
        """See AgentStream."""
        await self._stream.write(data)

    async def close(self) -> None:
        """See AgentStream."""
        await self._stream.close()


async def rehearse(stream: AgentStream) -> AgentStream:
    """Have a newly started agent run a command that leaves nothing; the stream to go on with. Raises SandboxError when
    the agent does not answer, or not as one does, and OSError when it does not read; the stream is the caller's to
    close."""
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            return await _rehearse(stream)
    except TimeoutError:
        raise SandboxError(f"an agent in stock did not answer within {_TIMEOUT_SECONDS:.0f} s") from None
    except frames.FrameError as error:
        raise SandboxError(f"an agent in stock broke the protocol: {error}") from error


async def _rehearse(stream: AgentStream) -> AgentStream:
    heard, hello, left = frames.Frames(), b"", _TIMES
    start = frames.start(_ID, _ARGV, flags=StartFlag.MERGED, user="", directory=WORKSPACE, environment={})
    while data := await stream.read():
        for kind, number, payload in heard.feed(data):
            if kind is ToHost.HELLO and not hello:
                hello = (5 + len(payload)).to_bytes(4, "big") + bytes((kind,)) + number.to_bytes(4, "big") + payload
                await stream.write(start)
            elif kind in (ToHost.OVER, ToHost.FAILED):
                # A box may have no such shell.
                left = left - 1 if kind is ToHost.OVER else 0
                if not left:
                    return RehearsedStream(stream, hello)
                await stream.write(start)
    raise SandboxError("an agent in stock ended before it was used")
