# SPDX-License-Identifier: MIT
"""Bytes between two sockets: half-close, back pressure and resets as without a gateway, and little memory.

No task and no buffer belongs to a connection. What is read is written at once; only what the other side does not take
is kept, at most READ_BYTES a direction, and nothing more is read until it is gone. A direction that is busy is spliced
through a pipe that is lent to it for the time, so that bulk data never enters this process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable
from typing import Protocol

from agentbox.egress.pipes import PIPE_BYTES, READ_BYTES, Room

# How much one direction moves before others have their turn.
_TURN_BYTES = 2 * 1024 * 1024
_RESET = struct.pack("ii", 1, 0)
_UNLIMITED = 1 << 62


class Inspector(Protocol):
    """Sees what passes in one direction before it goes on."""

    @property
    def free(self) -> int:
        """Bytes that may pass without being fed."""

    @property
    def waiting(self) -> bool:
        """Whether nothing should be read now."""

    def feed(self, data: bytes) -> bytes:
        """What may go on now that `data` came."""

    def passed(self, size: int) -> None:
        """So many of the free bytes went by."""


class Flow:
    """One direction: what is read from `source` is written to `sink`.

    Either may be None for a time: without a sink what was read is kept, without a source only `put` writes.
    """

    __slots__ = (
        "_busy", "_kept", "_pipe", "_piped", "_reading", "_relay", "_room", "_writing", "ended", "finished",
        "inspector", "moved", "sink", "source",
    )  # fmt: skip

    def __init__(self, room: Room, relay: Relay) -> None:
        self._room = room
        self._relay = relay
        self.source: socket.socket | None = None
        self.sink: socket.socket | None = None
        self.inspector: Inspector | None = None
        self.moved = 0
        self.ended = False
        self.finished = False
        self._kept = b""
        self._pipe: tuple[int, int] | None = None
        self._piped = 0
        self._busy = False
        self._reading = False
        self._writing = False

    @property
    def unsent(self) -> bytes:
        """What was read and could not be written yet."""
        return self._kept

    @property
    def stuck(self) -> bool:
        """Whether there is anything that could not be written yet."""
        return bool(self._kept or self._piped)

    @property
    def reading(self) -> bool:
        """Whether more is read when it comes."""
        return self._reading

    def settle(self) -> None:
        """Wait for exactly that what can go on. To be called when anything of this flow was changed from outside."""
        if self._relay.closed:
            return
        sink, source = self.sink, self.source
        stuck = bool(self._kept or self._piped)
        writing = stuck and sink is not None and not self.finished
        if writing != self._writing and sink is not None:
            self._writing = writing
            if writing:
                self._room.loop.add_writer(sink.fileno(), self._writable)
            else:
                self._room.loop.remove_writer(sink.fileno())
        reading = (
            source is not None
            and not stuck
            and not self.ended
            and (self.inspector is None or not self.inspector.waiting)
        )
        if reading != self._reading and source is not None:
            self._reading = reading
            if reading:
                self._room.loop.add_reader(source.fileno(), self._readable)
            else:
                self._room.loop.remove_reader(source.fileno())

    def put(self, data: bytes) -> None:
        """Write bytes after those that are kept."""
        if data:
            self._send(data)
        self.settle()

    def refeed(self) -> None:
        """Let the inspector go on with what it holds."""
        if self.inspector is not None:
            self.put(self.inspector.feed(b""))

    def end(self) -> None:
        """Nothing more will come: close this direction once everything is written."""
        self.ended = True
        self._finish()

    def discard(self) -> None:
        """Forget what was not written, and write nothing more."""
        self._kept = b""
        self._leave_pipe()

    def stop(self) -> None:
        """Wait for nothing more; the sockets are about to be closed."""
        if self._reading and self.source is not None:
            self._room.loop.remove_reader(self.source.fileno())
        if self._writing and self.sink is not None:
            self._room.loop.remove_writer(self.sink.fileno())
        self._reading = self._writing = False
        self.discard()

    def leave_source(self) -> None:
        """Read nothing more; what was read is still written."""
        if self._reading and self.source is not None:
            self._room.loop.remove_reader(self.source.fileno())
        self._reading = False
        self.source = None

    def _readable(self) -> None:
        source = self.source
        if source is None:
            return
        inspector = self.inspector
        free = _UNLIMITED if inspector is None else inspector.free
        try:
            if free and self.sink is not None:
                if self._busy and self._splice(source, self.sink, free):
                    return
                self._pass(source, min(free, READ_BYTES))
            else:
                self._read(source)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._relay.reset_by_source()
        except Exception:
            # A fault of ours must not leave a connection that nobody judges, nor a loop that never rests.
            self._relay.abort()
            raise

    def _pass(self, source: socket.socket, limit: int) -> None:
        """Move bytes that nobody looks at through the shared buffer."""
        buffer = self._room.buffer
        size = source.recv_into(buffer, limit)
        if not size:
            self._end_of_source()
            return
        self._busy = size == READ_BYTES
        self._count_free(size)
        self._send(buffer[:size])
        self._after()

    def _read(self, source: socket.socket) -> None:
        """Hand bytes to the inspector, or keep them as long as there is nowhere to write."""
        data = source.recv(READ_BYTES)
        if not data:
            self._end_of_source()
            return
        if self.inspector is not None:
            data = self.inspector.feed(data)
        self._send(data)
        self._after()

    def _after(self) -> None:
        if self._relay.closed:
            return
        if self._kept or (self.inspector is not None and self.inspector.waiting):
            self.settle()
        self._relay.progress()

    def _count_free(self, size: int) -> None:
        if self.inspector is not None:
            self.inspector.passed(size)

    def _end_of_source(self) -> None:
        self.ended = True
        self.settle()
        self._relay.source_ended(self)
        self._finish()

    def flush(self) -> None:
        """Write what was kept, now that there is a sink."""
        if self._kept:
            self._writable()
        self.settle()
        self._finish()

    def _send(self, data: bytes | memoryview) -> None:
        """Write what the sink takes and keep the rest."""
        if not len(data) or self.finished:
            return
        if self._kept or self._piped or self.sink is None:
            self._kept += bytes(data)
            return
        try:
            sent = self.sink.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._relay.refused_by(self)
            return
        self.moved += sent
        if sent < len(data):
            self._kept = bytes(data[sent:])

    def _writable(self) -> None:
        if self.sink is None:
            return
        try:
            if self._pipe is not None and self._piped:
                self._empty_pipe(self._pipe[0], self.sink)
            if self._kept and not self._piped:
                sent = self.sink.send(self._kept)
                self.moved += sent
                self._kept = self._kept[sent:]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._relay.refused_by(self)
            return
        if not self._kept and not self._piped:
            self._leave_pipe()
            self.settle()
            self._finish()
            if not self._relay.closed:
                self._relay.progress()

    def _splice(self, source: socket.socket, sink: socket.socket, free: int) -> bool:
        """Move bytes through a pipe; False when none is to be had."""
        if self._pipe is None:
            self._pipe = self._room.pipes.take()
            if self._pipe is None:
                return False
        out, into = self._pipe
        turn = _TURN_BYTES
        while turn > 0:
            try:
                size = os.splice(source.fileno(), into, min(free, PIPE_BYTES))
            except BlockingIOError:
                break
            if not size:
                self._leave_pipe()
                self._end_of_source()
                return True
            self._piped = size
            free -= size
            turn -= size
            self._count_free(size)
            try:
                self._empty_pipe(out, sink)
            except BlockingIOError:
                self.settle()
                return True
            except OSError:
                self._relay.refused_by(self)
                return True
            if not free:
                break
            self._busy = size >= READ_BYTES
            if not self._busy:
                break
        self._leave_pipe()
        if not free:
            self._after()
        return True

    def _empty_pipe(self, out: int, sink: socket.socket) -> None:
        while self._piped:
            size = os.splice(out, sink.fileno(), self._piped)
            self._piped -= size
            self.moved += size

    def _leave_pipe(self) -> None:
        if self._pipe is not None:
            pipe, self._pipe = self._pipe, None
            empty, self._piped = not self._piped, 0
            self._room.pipes.give_back(pipe, empty=empty)

    def _finish(self) -> None:
        """Close the direction when its end has come and everything is written."""
        if not self.ended or self.finished or self._kept or self._piped or self.sink is None or self._relay.closed:
            return
        self.finished = True
        try:
            self.sink.shutdown(socket.SHUT_WR)
        except OSError:
            self._relay.reset_by_source()
            return
        self._relay.flow_finished()


class Relay:
    """Two sockets and both directions between them. `on_closed` is called once, when both sockets are closed."""

    __slots__ = ("_on_closed", "closed", "down", "guest", "room", "up", "upstream")

    def __init__(self, room: Room, guest: socket.socket, on_closed: Callable[[Relay], None]) -> None:
        self.room = room
        self.guest = guest
        self.upstream: socket.socket | None = None
        self.closed = False
        self._on_closed = on_closed
        self.up = Flow(room, self)
        self.down = Flow(room, self)
        self.up.source = self.down.sink = guest

    def connect_to(self, upstream: socket.socket) -> None:
        """Begin to move bytes to and from this socket, which is connected."""
        self.upstream = upstream
        self.up.sink = self.down.source = upstream
        self.down.settle()
        self.up.flush()

    def abort(self) -> None:
        """Close both sockets with a reset, as a peer that vanishes does."""
        for end in (self.guest, self.upstream):
            if end is not None and not self.closed:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.close()

    def drop_upstream(self) -> None:
        """Close the socket to the outside with a reset and go on with the guest's alone."""
        upstream, self.upstream = self.upstream, None
        self.up.stop()
        self.up.sink = None
        self.down.leave_source()
        if upstream is not None:
            with contextlib.suppress(OSError):
                upstream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            upstream.close()

    def close(self) -> None:
        """Close both sockets."""
        if self.closed:
            return
        self.closed = True
        self.up.stop()
        self.down.stop()
        self.guest.close()
        if self.upstream is not None:
            self.upstream.close()
        self._on_closed(self)

    # What the flows tell. A subclass that looks at what passes extends `progress` and `source_ended`.

    def progress(self) -> None:
        """Something was read and handed on."""

    def source_ended(self, flow: Flow) -> None:
        """The source of a flow will send nothing more."""

    def flow_finished(self) -> None:
        """One direction is closed."""
        # Whatever a side did not take in lies unread, which makes a reset of this close.
        if self.up.finished and self.down.finished:
            self.close()

    def reset_by_source(self) -> None:
        """One side was reset: so is the other."""
        self.abort()

    def refused_by(self, flow: Flow) -> None:
        """The sink of a flow takes nothing more. What it had sent before is still delivered."""
        other = self.down if flow is self.up else self.up
        flow.discard()
        flow.ended = flow.finished = True
        flow.settle()
        if other.finished or other.source is None:
            self.abort()
