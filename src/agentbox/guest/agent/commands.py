# SPDX-License-Identifier: MIT
"""A command of the agent, and its terminal."""

from __future__ import annotations

import fcntl
import os
import struct
import termios

from .protocol import OWN, TERMINAL, Request


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
        self.killing = 0
        self.looked_again = False
        self.asked: set[int] = set()
        self.kill_at = self.give_up_at = self.next_tick = self.tick = self.next_look = 0.0


def set_size(fd: int, rows: int, columns: int) -> None:
    """The size of a terminal."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def waiting_bytes(fd: int) -> int:
    """How much is in a pipe."""
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))[0]) if fd >= 0 else 0
