# SPDX-License-Identifier: MIT
"""The frames between a sandbox's owner and the agent in its box (spec/agent). Pure; never trusts what comes."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum, IntFlag

VERSION = 1
MAX_REQUEST_BYTES = 1 << 22
MAX_PAYLOAD_BYTES = 1 << 16
# How much of a command's output the agent sends ahead of CREDIT, and of its input we send ahead of TAKEN.
OUTPUT_WINDOW_BYTES = 1 << 20
INPUT_WINDOW_BYTES = 1 << 18
_HEAD = struct.Struct(">IBI")
_START = struct.Struct(">BHHII")
_NUMBER = struct.Struct(">I")
_EXIT = struct.Struct(">IQQ")
_SMALLEST = 5


class ToAgent(IntEnum):
    """Frames towards the agent."""

    START = 1
    STDIN = 2
    STDIN_END = 3
    RESIZE = 4
    SIGNAL = 5
    KILL = 6
    CREDIT = 7


class ToHost(IntEnum):
    """Frames from the agent."""

    HELLO = 65
    STARTED = 66
    FAILED = 67
    STDOUT = 68
    STDERR = 69
    EXIT = 70
    CLOSED = 71
    TAKEN = 72
    KILLED = 73
    OVER = 74


class StartFlag(IntFlag):
    """How a command is started."""

    NONE = 0
    TERMINAL = 1
    STDIN = 2
    MERGED = 4
    OWN = 8


class FrameError(ValueError):
    """The agent broke the protocol: the stream is of no use any more."""


def frame(kind: ToAgent, command: int, payload: bytes = b"") -> bytes:
    """One frame towards the agent. Raises ValueError when it is too big for the agent."""
    if len(payload) + _SMALLEST > MAX_REQUEST_BYTES:
        raise ValueError(f"{len(payload)} bytes are more than the agent takes at once")
    return _HEAD.pack(len(payload) + _SMALLEST, kind, command) + payload


def start(
    command: int,
    argv: Sequence[str],
    *,
    flags: StartFlag,
    user: str,
    directory: str,
    environment: Mapping[str, str | None],
    size: tuple[int, int] = (0, 0),
) -> bytes:
    """A START frame; None takes a variable out. Raises ValueError for a zero byte, or when it is all too long."""
    variables = [name if value is None else f"{name}={value}" for name, value in environment.items()]
    strings = [text.encode("utf-8", "surrogateescape") for text in (user, directory, *argv, *variables)]
    for string in strings:
        if b"\0" in string:
            raise ValueError("a zero byte cannot be part of a command, its directory or its environment")
    head = _START.pack(flags, *size, len(argv), len(variables))
    return frame(ToAgent.START, command, head + b"".join(string + b"\0" for string in strings))


def number(kind: ToAgent, command: int, value: int) -> bytes:
    """A KILL or CREDIT frame."""
    return frame(kind, command, _NUMBER.pack(value))


def resize(command: int, rows: int, columns: int) -> bytes:
    """A RESIZE frame."""
    return frame(ToAgent.RESIZE, command, struct.pack(">HH", rows, columns))


def read_number(payload: bytes) -> int:
    """The number of a STARTED, TAKEN or KILLED frame, or the first one of FAILED. Raises FrameError."""
    if len(payload) < _NUMBER.size:
        raise FrameError("a frame of the agent is too short")
    return int(_NUMBER.unpack_from(payload)[0])


def read_exit(payload: bytes) -> tuple[int, int, int]:
    """Of an EXIT frame: a wait(2) status, microseconds of processor time, bytes of memory. Raises FrameError."""
    if len(payload) != _EXIT.size:
        raise FrameError("an EXIT frame of the agent has the wrong size")
    status, cpu_us, rss = _EXIT.unpack(payload)
    return status, cpu_us, rss


class Frames:
    """Bytes of the agent become frames."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[ToHost, int, bytes]]:
        """The frames that are complete now. Raises FrameError."""
        pending = self._pending
        pending += data
        at = 0
        try:
            while len(pending) - at >= _HEAD.size:
                size, kind, command = _HEAD.unpack_from(pending, at)
                if not _SMALLEST <= size <= MAX_PAYLOAD_BYTES + _SMALLEST:
                    raise FrameError(f"a frame of {size} bytes")
                end = at + 4 + size
                if len(pending) < end:
                    return
                try:
                    known = ToHost(kind)
                except ValueError:
                    raise FrameError(f"a frame of type {kind}") from None
                payload = bytes(memoryview(pending)[at + _HEAD.size : end])
                at = end
                yield known, command, payload
        finally:
            del pending[:at]
