# SPDX-License-Identifier: MIT
"""One kept stream to the agent in a box: frames out, frames in, each to the command that it is about."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import Protocol

from agentbox.errors import SandboxError
from agentbox.isolation.durable import AgentStream
from agentbox.sandbox import frames
from agentbox.sandbox.frames import ToAgent, ToHost

_HELLO_TIMEOUT_SECONDS = 20
# CREDIT is sent when so much has been taken, so that a flood costs few frames.
_CREDIT_STEP_BYTES = frames.OUTPUT_WINDOW_BYTES // 4


class Addressee(Protocol):
    """What frames about one command are handed to."""

    def hear(self, kind: ToHost, payload: bytes) -> None:
        """One frame. Raises FrameError when it makes no sense."""

    def lose(self, why: str) -> None:
        """The agent is gone: nothing more will come."""


class AgentLink:
    """Made by `open`. When the agent ends or breaks the protocol, every command is told, and `lost` is set."""

    def __init__(self, stream: AgentStream) -> None:
        self._stream = stream
        # Where a stream can, little is written in the step that sends it: a task and its turn cost more.
        self._write_now: Callable[[bytes], int] = getattr(stream, "write_now", lambda _: 0)
        self._frames = frames.Frames()
        self._ids = itertools.count(1)
        self._commands: dict[int, Addressee] = {}
        self._uncredited: dict[int, int] = {}
        self._outgoing = bytearray()
        self._writing: asyncio.Task[None] | None = None
        self._pump: asyncio.Task[None] | None = None
        self._hello: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.lost: str | None = None
        self.agent_uid = -1
        self.native = False

    @classmethod
    async def open(cls, stream: AgentStream) -> AgentLink:
        """Wait until the agent says hello. Raises SandboxError; the stream is closed then."""
        link = cls(stream)
        link._pump = asyncio.create_task(link._read())
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT_SECONDS):
                hello = await link._hello
        except TimeoutError:
            await link.close()
            raise SandboxError(
                f"the agent in the box did not answer within {_HELLO_TIMEOUT_SECONDS} s", hint="reset the sandbox"
            ) from None
        except BaseException:
            await link.close()
            raise
        link.agent_uid = int.from_bytes(hello[1:5], "big")
        link.native = hello[5] == 1
        return link

    def new_id(self, command: Addressee) -> int:
        """An id whose frames go to `command`. Raises SandboxError when the agent is gone."""
        if self.lost is not None:
            raise SandboxError(f"the agent in the box is gone: {self.lost}", hint="try again; it is started anew")
        number = next(self._ids)
        self._commands[number] = command
        return number

    def forget(self, command: int) -> None:
        """No frame about it is expected any more."""
        self._commands.pop(command, None)
        self._uncredited.pop(command, None)

    def send(self, data: bytes) -> None:
        """Have frames written, in order, as fast as the agent reads; nothing happens when it is gone. Whoever sends
        much waits for what is taken: see Command.send."""
        if self.lost is not None:
            return
        if self._writing is None:
            data = data[self._write_now(data) :]
            if not data:
                return
        self._outgoing += data
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._outgoing:
                data, self._outgoing = self._outgoing, bytearray()
                await self._stream.write(bytes(data))
        except OSError as error:
            self._lose(f"it does not read: {error.strerror}")
        finally:
            self._writing = None

    def taken(self, command: int, size: int) -> None:
        """So many bytes of a command's output are in our hands: more may come."""
        waiting = self._uncredited.get(command, 0) + size
        if waiting >= _CREDIT_STEP_BYTES:
            self.send(frames.number(ToAgent.CREDIT, command, waiting))
            waiting = 0
        self._uncredited[command] = waiting

    async def _read(self) -> None:
        why = "it has ended"
        try:
            while data := await self._stream.read():
                for kind, number, payload in self._frames.feed(data):
                    self._dispatch(kind, number, payload)
                # A flood must not keep the loop from everything else.
                await asyncio.sleep(0)
        except frames.FrameError as error:
            why = f"it broke the protocol: {error}"
        except OSError as error:
            why = f"its output cannot be kept: {error.strerror}"
        finally:
            self._lose(why)

    def _dispatch(self, kind: ToHost, number: int, payload: bytes) -> None:
        if kind is ToHost.HELLO:
            if number or len(payload) != 6 or payload[0] != frames.VERSION or self._hello.done():
                raise frames.FrameError("a HELLO that is none")
            self._hello.set_result(payload)
            return
        command = self._commands.get(number)
        if command is not None:
            command.hear(kind, payload)

    def _lose(self, why: str) -> None:
        if self.lost is not None:
            return
        self.lost = why
        if not self._hello.done():
            self._hello.set_exception(SandboxError(f"the agent in the box did not start: {why}"))
            # Whoever opened it may have given up.
            self._hello.exception()
        commands, self._commands = list(self._commands.values()), {}
        for command in commands:
            command.lose(why)

    async def close(self) -> None:
        """End the agent, and with it everything that it started. May be called twice."""
        await self._stream.close()
        self._lose("it was closed")
        for task in (self._pump, self._writing):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
