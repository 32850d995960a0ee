# SPDX-License-Identifier: MIT
"""The caller's terminal, relayed to one that the box made for itself: the guest never holds the real one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import termios
import tty
from typing import Any

from agentbox.engine.capture import readable
from agentbox.linux import terminals

_CHUNK = 1 << 16


class Terminal:
    """This process's own terminal while a box uses it: raw, restored at the end, its size passed on."""

    def __init__(self, fd_in: int, fd_out: int) -> None:
        self._in = fd_in
        self._out = fd_out
        self._saved: list[Any] | None = None

    @classmethod
    def of_this_process(cls) -> Terminal | None:
        """The terminal of stdin and stdout, None when one of them is none."""
        return cls(0, 1) if os.isatty(0) and os.isatty(1) else None

    def size(self) -> tuple[int, int]:
        """(rows, columns)."""
        try:
            return terminals.size_of(self._out)
        except OSError:
            return 24, 80

    def restore(self) -> None:
        """Give the terminal back as it was found."""
        if self._saved is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._in, termios.TCSADRAIN, self._saved)
            self._saved = None

    async def relay(self, master: int) -> None:
        """Carry bytes both ways until the box's side is closed, then close `master`."""
        loop = asyncio.get_running_loop()
        self._saved = termios.tcgetattr(self._in)
        tty.setraw(self._in)
        os.set_blocking(master, False)
        loop.add_signal_handler(signal.SIGWINCH, lambda: self._resize(master))
        typing = asyncio.create_task(self._type(master))
        try:
            while True:
                try:
                    data = os.read(master, _CHUNK)
                except BlockingIOError:
                    await readable(master)
                    continue
                except OSError:
                    # EIO: the last process that had the terminal is gone.
                    return
                if not data:
                    return
                await asyncio.to_thread(_write_all, self._out, data)
        finally:
            typing.cancel()
            await asyncio.gather(typing, return_exceptions=True)
            loop.remove_signal_handler(signal.SIGWINCH)
            os.close(master)
            self.restore()

    async def _type(self, master: int) -> None:
        while True:
            await readable(self._in)
            data = os.read(self._in, _CHUNK)
            if not data:
                return
            view = memoryview(data)
            while view:
                try:
                    view = view[os.write(master, view) :]
                except BlockingIOError:
                    await asyncio.sleep(0.01)

    def _resize(self, master: int) -> None:
        with contextlib.suppress(OSError):
            terminals.set_size(master, *self.size())


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            continue
