# SPDX-License-Identifier: MIT
"""An operation of the agent on files: its output piece by piece, held back while nobody takes it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Self

from agentbox.errors import SandboxError
from agentbox.sandbox import frames
from agentbox.sandbox.frames import FrameError, StartFlag, ToAgent, ToHost
from agentbox.sandbox.link import AgentLink

_PIECE_BYTES = 1 << 16


class Operation:
    """Started by `start`; then `pieces` or `send` and `finish`. Errors of the guest's files are OSErrors with their
    errno and the path."""

    def __init__(self, link: AgentLink, path: str) -> None:
        self._link = link
        self._path = path
        self._number = link.new_id(self)
        self._pieces: list[bytes] = []
        self._changed = asyncio.Event()
        self._started = False
        self._status: int | None = None
        self._closed = False
        self._lost: str | None = None
        self._error = 0
        self._room = frames.INPUT_WINDOW_BYTES

    @classmethod
    async def start(
        cls, link: AgentLink, path: str, argv: tuple[str, ...], user: str, *, stdin: bool, own: bool = True
    ) -> Self:
        """Begin it; a program of the box where it is not the agent's `own`. Raises OSError, SandboxError."""
        operation = cls(link, path)
        flags = (StartFlag.OWN if own else StartFlag.NONE) | (StartFlag.STDIN if stdin else StartFlag.NONE)
        try:
            link.send(frames.start(operation._number, argv, flags=flags, user=user, directory="/", environment={}))
            while not operation._started:
                await operation._change()
        except BaseException:
            operation.abandon()
            raise
        return operation

    def hear(self, kind: ToHost, payload: bytes) -> None:
        """One frame of the agent about it."""
        if kind is ToHost.STDOUT:
            self._pieces.append(payload)
        elif kind is ToHost.STARTED:
            self._started = True
        elif kind is ToHost.FAILED:
            self._error = frames.read_number(payload) or 5
            self._started = self._closed = True
            self._link.forget(self._number)
        elif kind is ToHost.EXIT:
            self._status = frames.read_exit(payload)[0]
        elif kind is ToHost.TAKEN:
            self._room = min(self._room + frames.read_number(payload), frames.INPUT_WINDOW_BYTES)
        elif kind is ToHost.CLOSED:
            self._closed = True
        elif kind is ToHost.OVER:
            self._link.forget(self._number)
        elif kind not in (ToHost.STDERR, ToHost.KILLED):
            raise FrameError(f"a frame of type {kind} about an operation")
        self._changed.set()

    def lose(self, why: str) -> None:
        """The agent is gone."""
        self._lost = why
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
        self._check()

    def _check(self) -> None:
        if self._lost is not None and not self._closed:
            raise SandboxError(
                f"{self._path}: the agent in the box ended: {self._lost}", hint="try again; it is started anew"
            )
        if self._error:
            raise OSError(self._error, os.strerror(self._error), self._path)

    async def pieces(self) -> AsyncIterator[bytes]:
        """What it gives; at most 1 MiB is on its way. Raises OSError, SandboxError."""
        try:
            while True:
                if self._pieces:
                    # Together, since each turn of whoever takes them may cost more than the bytes.
                    piece = b"".join(self._pieces)
                    self._pieces.clear()
                    self._link.taken(self._number, len(piece))
                    yield piece
                    continue
                if self._closed:
                    break
                await self._change()
            self._conclude()
        finally:
            self.abandon()

    async def send(self, data: bytes) -> None:
        """Give it bytes, as fast as it writes them. Raises OSError, SandboxError."""
        view = memoryview(data)
        while view:
            while self._room <= 0 and self._status is None and not self._closed:
                await self._change()
            if self._status is not None or self._closed:
                self._conclude()
                raise OSError(5, os.strerror(5), self._path)
            piece = view[: min(_PIECE_BYTES, self._room)]
            self._room -= len(piece)
            self._link.send(frames.frame(ToAgent.STDIN, self._number, bytes(piece)))
            view = view[len(piece) :]

    async def finish(self, *, end_input: bool = True) -> None:
        """Wait until it is done. Raises OSError, SandboxError."""
        try:
            if end_input:
                self._link.send(frames.frame(ToAgent.STDIN_END, self._number))
            while not self._closed:
                await self._change()
            self._conclude()
        finally:
            self.abandon()

    def _conclude(self) -> None:
        self._check()
        status = self._status or 0
        if os.WIFSIGNALED(status):
            raise SandboxError(f"{self._path}: the operation was killed in the box", hint="try again")
        if code := os.WEXITSTATUS(status):
            raise OSError(code, os.strerror(code), self._path)

    def abandon(self) -> None:
        """End it if it is not done. May be called twice."""
        if not self._closed and self._lost is None:
            self._link.send(frames.number(ToAgent.KILL, self._number, 0))
            self._closed = True
