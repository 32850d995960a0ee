# SPDX-License-Identifier: MIT
"""A process that stands in for a program in a replay: it reads and writes what the program read and wrote when it was
recorded, and ends as it did. It runs nothing: it is a fork of the interpreter that never returns from here.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
from posix import _exit, close, get_inheritable, getpid, kill, listdir, read, write
from select import POLLIN, POLLOUT, poll
from time import monotonic

from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_READ_BYTES = 1 << 16
_ROOM_BYTES = 4096
_STDIN = 0
_FAILED = 255
_SIGKILL = 9
# All that a program can wait for, but those that say nothing of its end: of children, terminals, going on.
_ENDING_SIGNALS = frozenset(range(1, 32)) - {9, 17, 18, 19, 20, 21, 22, 23, 28}
# How long nothing may move before a signal that has come is what it waits for.
_PATIENCE_MILLISECONDS = 100
_LONGEST_MILLISECONDS = 1000
# Setting a terminal from the background would stop it.
_SIGTTOU = 22


@sealed
class StandIn:
    """Plays one child. `chunks` are (stream, data, how much it had been given by then); `code` is how it ended, -n by
    signal n, None when it had not, and `silent` then says that it had closed its output; `asked` tells what it was
    given, once it has been given all."""

    def __init__(
        self, chunks: Any, code: Any, silent: bool, signalled: bool, sha256: Any, asked: Any, fed: bool, pace: Any = 0
    ) -> None:
        # It ends no sooner than the program did, so that who ends first does so again; but nobody waits long.
        self._pace = min(pace, _LONGEST_MILLISECONDS) if type(pace) is int else 0
        self._began = monotonic()
        self._chunks = chunks
        self._code = code
        self._is_silent = silent
        self._signalled = signalled
        self._asked = asked
        self._is_fed = fed
        self._hash = sha256(b"")
        self._given = 0
        self._is_open = fed

    def play(self, failed: bytes, errors: int, kept: Any, read_out: bool) -> None:
        """Be it; `failed` is what is told about a program that could not be started, on the descriptor `errors`.
        `kept` are the descriptors that it has besides the usual ones, or None for all that are handed on; with
        `read_out` it reads them to their end before it ends."""
        try:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, _ENDING_SIGNALS | {_SIGTTOU})
            if failed:
                write(errors, failed)
                _exit(_FAILED)
            _close_others(kept)
            for stream, data, given in self._chunks:
                while self._is_open and self._given < given and self._goes_on():
                    self._take()
                self._put(stream, data)
            while self._is_open and self._goes_on():
                self._take()
            if not self._is_open and self._is_fed and self._asked is not None:
                self._asked({"sha256": self._hash.hexdigest(), "bytes": self._given})
            if read_out:
                self._code = self._code or 0
                for number in kept or ():
                    while number > 2 and read(number, _READ_BYTES):
                        continue
            self._end()
        finally:
            _exit(_FAILED)

    def _goes_on(self) -> bool:
        """Whether no signal has come that ends it."""
        return not _ENDING_SIGNALS & _signal.sigpending()

    def _take(self) -> None:
        """Read of what it is given, when there is something."""
        watch = poll()
        watch.register(_STDIN, POLLIN)
        if not watch.poll(_PATIENCE_MILLISECONDS):
            return
        try:
            data = read(_STDIN, _READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self._is_open = False
            return
        self._hash.update(data)
        self._given += len(data)

    def _put(self, stream: int, data: bytes) -> None:
        """Write, and read meanwhile: who gives may not take before it has given. A stream below zero is a terminal,
        which shows what it showed: nothing of it is translated again."""
        if stream < 0:
            with _Untranslated(-stream):
                self._put(-stream, data)
            return
        at = 0
        while at < len(data):
            watch = poll()
            watch.register(stream, POLLOUT)
            if self._is_open:
                watch.register(_STDIN, POLLIN)
            ready = dict(watch.poll(_PATIENCE_MILLISECONDS))
            if not ready and not self._goes_on():
                return
            if stream in ready:
                try:
                    at += write(stream, data[at : at + _ROOM_BYTES])
                except OSError:
                    return
            if _STDIN in ready:
                self._take()

    def _end(self) -> None:
        code = self._code
        if code is None:
            if self._is_silent:
                close(1)
                close(2)
            for number in _ENDING_SIGNALS:
                _signal.signal(number, _signal.SIG_DFL)
            _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
            while True:
                poll().poll()
        left = self._pace - (monotonic() - self._began) * 1000
        while left > 0 and not self._signalled and self._goes_on():
            poll().poll(min(left, _PATIENCE_MILLISECONDS))
            left = self._pace - (monotonic() - self._began) * 1000
        if self._signalled and code != -_SIGKILL:
            # It went on until a signal came: the one that it ended by, where one did.
            while _signal.sigwait(_ENDING_SIGNALS) != -code and code < 0:
                continue
        if code >= 0:
            _exit(code)
        if self._signalled and code == -_SIGKILL:
            while True:
                poll().poll()
        if -code != _SIGKILL:
            _signal.signal(-code, _signal.SIG_DFL)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (-code,))
        kill(getpid(), -code)
        while True:
            poll().poll()


class _Untranslated:
    """A terminal that shows bytes as they are."""

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._kept: Any = None

    def __enter__(self) -> None:
        import termios

        try:
            self._kept = termios.tcgetattr(self._stream)
            raw = list(self._kept)
            raw[1] &= ~termios.OPOST
            termios.tcsetattr(self._stream, termios.TCSADRAIN, raw)
        except termios.error:
            self._kept = None

    def __exit__(self, *_: object) -> None:
        import termios

        if self._kept is not None:
            termios.tcsetattr(self._stream, termios.TCSADRAIN, self._kept)


def _close_others(kept: Any) -> None:
    for name in listdir("/proc/self/fd"):
        number = int(name)
        try:
            if number > 2 and not (get_inheritable(number) if kept is None else number in kept):
                close(number)
        except OSError:
            continue
