# SPDX-License-Identifier: MIT
"""The caller's terminal, relayed to one that the box made for itself: the guest never holds the real one."""

from __future__ import annotations

import fcntl
import os
import termios
import tty

from agentbox.engine.capture import may_open_again, readable
from agentbox.engine.output import Stream
from agentbox.light import asyncio, contextlib, signal
from agentbox.linux import terminals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_CHUNK = 1 << 16
_DEFAULT_SIZE = (24, 80)


class Terminal:
    """This process's own terminal while a box uses it: raw while in the foreground, restored at the end, its size
    passed on. `instead` are the descriptors of 0, 1 and 2 that are no terminal and go to the program as they are."""

    def __init__(self, fd: int, instead: dict[int, int]) -> None:
        self._fd = fd
        self._saved: list[Any] | None = None
        self._master = -1
        self._typing: asyncio.Task[None] | None = None
        self._suspended: Callable[[], None] = lambda: None
        self.instead = instead
        # What was shown on it.
        self.output = Stream((0, 1, 2), -1)
        # Bytes come in the order in which they were read.
        self._showing = asyncio.Lock()
        self._over = asyncio.Event()
        self._drained: set[asyncio.Task[None]] = set()

    @classmethod
    def of_this_process(cls) -> Terminal | None:
        """The terminal that stdout is, None when it is none or when nothing can be typed on it."""
        if not os.isatty(1):
            return None
        instead = {number: number for number in (0, 2) if not os.isatty(number)}
        try:
            return cls(os.open(os.ttyname(1), os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC), instead)
        except OSError:
            # Another user's terminal, as after `su`, or one of another devpts: what was inherited does too.
            both = fcntl.fcntl(1, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
            return cls(os.dup(1), instead) if both else None

    def size(self) -> tuple[int, int]:
        """(rows, columns)."""
        try:
            found = terminals.size_of(self._fd)
        except OSError:
            return _DEFAULT_SIZE
        return found if all(found) else _DEFAULT_SIZE

    def hold(self) -> None:
        """Make the terminal raw and begin to pass on what is typed. Nothing while another program has the terminal."""
        if not self._is_in_foreground():
            return
        with contextlib.suppress(termios.error):
            if self._saved is None:
                self._saved = termios.tcgetattr(self._fd)
            # What was typed ahead is for the command too, so nothing is flushed.
            tty.setraw(self._fd, termios.TCSADRAIN)
        self._resize()
        if self._typing is None and self._master >= 0:
            self._typing = asyncio.create_task(self._type())

    def release(self) -> None:
        """Give the terminal back as it was found; `hold` takes it again."""
        if self._typing is not None:
            self._typing.cancel()
            self._typing = None
        if self._saved is not None and self._is_in_foreground():
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._saved)
            self._saved = None

    def over(self) -> None:
        """Nothing in the box runs any more: `relay` ends when everything was shown."""
        self._over.set()

    async def relay(self, master: int, suspended: Callable[[], None]) -> None:
        """Carry bytes both ways until nothing has the box's side open and `over` was called, then close `master`.
        `suspended` is called when the
        key that suspends is typed while the program itself is what would stop."""
        loop = asyncio.get_running_loop()
        self._master = master
        self._suspended = suspended
        os.set_blocking(master, False)
        loop.add_signal_handler(signal.SIGWINCH, self._resize)
        self.hold()
        try:
            while True:
                try:
                    data = os.read(master, _CHUNK)
                except BlockingIOError:
                    await readable(master)
                    continue
                except OSError:
                    # EIO: nobody has the terminal open.
                    data = b""
                if not data:
                    if await may_open_again(self._over):
                        continue
                    return
                self.output.take(data)
                if not await self._show(data):
                    return
        finally:
            self.close()
            loop.remove_signal_handler(signal.SIGWINCH)
            os.close(master)

    def shown(self) -> int:
        """How many bytes were shown on it so far, with all that the programs of the box have written by now."""
        while self._master >= 0:
            try:
                data = os.read(self._master, _CHUNK)
            except OSError:
                break
            if not data:
                break
            self.output.take(data)
            showing = asyncio.create_task(self._show_later(data))
            self._drained.add(showing)
            showing.add_done_callback(self._drained.discard)
        return self.output.written.size

    async def _show_later(self, data: bytes) -> None:
        await self._show(data)

    async def _show(self, data: bytes) -> bool:
        async with self._showing:
            try:
                await asyncio.to_thread(_write_all, self._fd, data)
            except OSError:
                # The terminal was hung up; the program is told by SIGHUP.
                return False
        return True

    def close(self) -> None:
        """Restore the terminal and let it go; may be called twice."""
        self.release()
        self._master = -1
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    async def _type(self) -> None:
        while True:
            await readable(self._fd)
            try:
                data = os.read(self._fd, _CHUNK)
            except OSError:
                return
            if not data:
                return
            # The signal of a window that changed may be heard after what was typed into it.
            self._resize()
            if self._would_suspend(data):
                # The program's group has no parent in its session, so the kernel would pass the key over.
                self._suspended()
                continue
            self.output.typed.feed(data)
            view = memoryview(data)
            while view:
                try:
                    view = view[os.write(self._master, view) :]
                except BlockingIOError:
                    await asyncio.sleep(0.01)
                except OSError:
                    # Nobody has the other side open at this moment.
                    break

    def _would_suspend(self, typed: bytes) -> bool:
        """Whether this is the key that suspends and the program in front neither handles nor ignores that."""
        with contextlib.suppress(OSError, termios.error):
            flags, keys = termios.tcgetattr(self._master)[3], termios.tcgetattr(self._master)[6]
            if typed != keys[termios.VSUSP] or not flags & termios.ISIG:
                return False
            leader = terminals.session_of(self._master)
            return leader == os.tcgetpgrp(self._master) and not _minds_suspension(leader)
        return False

    def _is_in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            # Not this session's terminal, as under a test harness: nobody else would use it.
            return self._fd >= 0

    def _resize(self) -> None:
        with contextlib.suppress(OSError):
            if self._master >= 0:
                terminals.set_size(self._master, *self.size())


def _minds_suspension(pid: int) -> bool:
    """Whether a process catches or ignores SIGTSTP."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            masks = [int(line.split()[1], 16) for line in file if line.startswith((b"SigIgn:", b"SigCgt:"))]
    except OSError:
        return True
    return any(mask >> (signal.SIGTSTP - 1) & 1 for mask in masks)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            continue
