# SPDX-License-Identifier: MIT
"""What goes between a recorded program and one that it started: passed on, and kept for the record.

Nothing is changed on the way but the pipe itself. A thread passes on while the program does something else; whoever
learns that the other has ended passes on what is left before going on, so that output does not come late.
"""

from __future__ import annotations

from _thread import allocate_lock
from posix import close, dup2, fstat, read, write
from select import POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, poll

from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A pipe that can be written to has room for so many bytes.
_ROOM_BYTES = 4096
_READ_BYTES = 1 << 16
_MAX_CHUNKS = 4096
_CLOSED = POLLERR | POLLHUP | POLLNVAL
_HIGHEST = (1000, 500, 250, 60)
_LOWEST = 10


def placed_high(descriptor: int) -> int:
    """A descriptor at a number that programs do not meet, closed on exec; the given one is closed."""
    for number in range(_HIGHEST[0] - 1, _LOWEST, -1):
        try:
            fstat(number)
        except OSError:
            try:
                dup2(descriptor, number, False)
            except OSError:
                # Beyond this process's limit.
                continue
            close(descriptor)
            return number
    return descriptor


@sealed
class Relay:
    """The streams of one child. `outputs` are (source, target, stream): what is read from a source goes to a target,
    and is output 1 or 2 of the child; `feed` is (source, target) of what it is given, or None. The relay owns all
    these descriptors. `keep` gives what collects the bytes of a stream."""

    def __init__(self, outputs: Any, feed: Any, keep: Any, sha256: Any) -> None:
        self.lock = allocate_lock()
        self._outputs = [[source, target, stream, b""] for source, target, stream in outputs]
        self._feed = None if feed is None else [*feed, b""]
        self.kept = {stream: keep() for _, _, stream in outputs}
        self.is_fed = feed is not None
        self._hash = sha256(b"")
        self._given = 0
        # How much it had been given before it wrote so much to a stream.
        self.chunks: list[Any] = []
        self.has_all_input = False

    def given(self) -> Any:
        """The hash and the size of what the child was given."""
        return {"sha256": self._hash.hexdigest(), "bytes": self._given}

    def is_over(self) -> bool:
        """Whether all that the child wrote has been passed on."""
        return not self._outputs

    def run(self) -> None:
        """Pass on until there is nothing left."""
        while True:
            watch = poll()
            with self.lock:
                waiting = self._watched(watch)
            if not waiting:
                return
            watch.poll()
            with self.lock:
                self._pass_on()

    def settle(self) -> None:
        """Pass on what there is at this moment."""
        with self.lock:
            self._pass_on()

    def ended(self) -> None:
        """The child has ended: it reads no more."""
        with self.lock:
            if self._feed is not None and not self._outputs:
                self._close_feed()

    def drop(self) -> None:
        """Close everything: in a forked child none of it is ours."""
        for source, target, _, _ in self._outputs:
            _close(source, target)
        self._outputs = []
        if self._feed is not None:
            _close(*self._feed[:2])
            self._feed = None

    def _watched(self, watch: Any) -> bool:
        for source, target, _, held in self._outputs:
            watch.register(target if held else source, POLLOUT if held else POLLIN)
        feed = self._feed
        if feed is not None:
            watch.register(feed[1] if feed[2] else feed[0], POLLOUT if feed[2] else POLLIN)
            if not feed[2]:
                # The child may have closed its end, which ends this one.
                watch.register(feed[1], 0)
        return bool(self._outputs) or feed is not None

    def _pass_on(self) -> None:
        moved = True
        while moved:
            moved = self._pass_in() if self._feed is not None else False
            for entry in list(self._outputs):
                moved = self._pass_out(entry) or moved

    def _pass_in(self) -> bool:
        feed: Any = self._feed
        source, target, held = feed
        if _state(target, 0) & _CLOSED:
            self._close_feed()
            return False
        if held:
            if not _state(target, POLLOUT) & POLLOUT:
                return False
            done = _written(target, held)
            if done < 0:
                self._close_feed()
                return False
            feed[2] = held[done:]
            return True
        state = _state(source, POLLIN)
        if not state:
            return False
        data = _read(source)
        if not data:
            self.has_all_input = True
            self._close_feed()
            return False
        self._hash.update(data)
        self._given += len(data)
        feed[2] = data
        return True

    def _pass_out(self, entry: Any) -> bool:
        source, target, stream, held = entry
        if held:
            state = _state(target, POLLOUT)
            if not state:
                return False
            # Writing where nobody reads could end the program by a signal.
            done = -1 if state & _CLOSED else _written(target, held)
            if done < 0:
                # Nobody reads it: the child is told so when it writes again.
                self._close_output(entry)
                return True
            entry[3] = held[done:]
            return True
        if not _state(source, POLLIN):
            return False
        data = _read(source)
        if not data:
            self._close_output(entry)
            return True
        self.kept[stream].add(data)
        self._note(stream, len(data))
        entry[3] = data
        return True

    def _note(self, stream: int, size: int) -> None:
        last = self.chunks[-1] if self.chunks else None
        if last is not None and last[0] == stream and (last[2] == self._given or len(self.chunks) >= _MAX_CHUNKS):
            last[1] += size
        elif len(self.chunks) < _MAX_CHUNKS:
            self.chunks.append([stream, size, self._given])
        else:
            self.chunks[-1][1] += size

    def _close_output(self, entry: Any) -> None:
        self._outputs.remove(entry)
        _close(entry[0], entry[1])

    def _close_feed(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            _close(feed[0], feed[1])


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        try:
            close(descriptor)
        except OSError:
            continue


def _state(descriptor: int, events: int) -> int:
    watch = poll()
    watch.register(descriptor, events)
    found = watch.poll(0)
    return int(found[0][1]) if found else 0


def _read(descriptor: int) -> bytes:
    try:
        return read(descriptor, _READ_BYTES)
    except OSError:
        return b""


def _written(descriptor: int, data: bytes) -> int:
    try:
        return write(descriptor, data[:_ROOM_BYTES])
    except OSError:
        return -1
