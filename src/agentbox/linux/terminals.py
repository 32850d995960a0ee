# SPDX-License-Identifier: MIT
"""Pseudo-terminals of the calling process's own devpts instance."""

from __future__ import annotations

import fcntl
import os
import struct
import termios

_TIOCSPTLCK = 0x40045431
_TIOCGPTPEER = 0x5441
_TIOCGSID = 0x5429


def open_master() -> int:
    """The master end of a new pseudo-terminal; its slave is unlocked."""
    master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
    return master


def open_slave(master: int) -> int:
    """The slave end, opened through the master, so that no path can lead elsewhere (Linux 4.13)."""
    return fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)


def take_as_controlling_terminal(slave: int) -> None:
    """Make the terminal the controlling one of this session's leader."""
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)


def set_size(fd: int, rows: int, columns: int) -> None:
    """Tell a terminal its size; its foreground process group gets SIGWINCH."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def size_of(fd: int) -> tuple[int, int]:
    """(rows, columns) of a terminal. Raises OSError when it is none."""
    rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8)))
    return rows, columns


def session_of(master: int) -> int:
    """The process that leads the session of a terminal, as the caller's PID namespace sees it. Raises OSError."""
    return int(struct.unpack("i", fcntl.ioctl(master, _TIOCGSID, bytes(4)))[0])
