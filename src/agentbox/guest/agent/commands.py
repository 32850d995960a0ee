# SPDX-License-Identifier: MIT
"""A command of the agent, and its terminal."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
import time

from .protocol import OWN, TERMINAL, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class Command:
    """One that runs, or whose remains do."""

    def __init__(self, number: int, request: Request) -> None:
        self.id = number
        self.own = bool(request.flags & OWN)
        self.terminal = bool(request.flags & TERMINAL)
        self.control = self.input = self.out = self.err = -1
        self.keeper = self.pid = 0
        self.uid, self.gid = os.geteuid(), os.getegid()
        self.started = self.exited = self.closed = False
        self.keeper_gone = self.keeper_status = 0
        self.pending = bytearray()
        self.ending = False
        self.uncredited = 0
        self.end: tuple[int, int, int] | None = None
        self.left = [0, 0]
        self.settle_at = 0.0
        # Nobody has its terminal open; when to look again.
        self.hung_until = 0.0
        self.killing = 0
        self.looked_again = False
        self.asked: set[int] = set()
        self.kill_at = self.give_up_at = self.next_tick = self.tick = self.next_look = 0.0

    @property
    def has_terminal(self) -> bool:
        """Whether it has ended and left its terminal, which others may have open."""
        return self.terminal and self.exited and self.out >= 0


def is_readable(fd: int) -> bool:
    """Whether reading would give something at once."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


def set_size(fd: int, rows: int, columns: int) -> None:
    """The size of a terminal."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def waiting_bytes(fd: int) -> int:
    """How much is in a pipe."""
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))[0]) if fd >= 0 else 0


def next_milliseconds(commands: Iterable[Command]) -> float | None:
    """Until the next thing to do for one of them, None for none."""
    due = []
    for command in commands:
        if command.killing:
            due.append(command.next_tick)
        if command.terminal and command.end is not None and not command.exited:
            due.append(command.settle_at)
        if command.hung_until and command.end is None:
            due.append(command.hung_until)
        if command.next_look:
            due.append(command.next_look)
    return max(0.0, (min(due) - time.monotonic()) * 1000) if due else None
