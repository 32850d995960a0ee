# SPDX-License-Identifier: MIT
"""Messages between this process and a maker, a warm interpreter or a warm child: the Python side of native/box.h."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence

# op, id, and four numbers whose meaning follows from op.
_HEAD = struct.Struct("=II4q")
MAX_MESSAGE_BYTES = 160 * 1024
_MAX_DESCRIPTORS = 16
_INTS = struct.Struct("=i")
_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * _MAX_DESCRIPTORS)
# What comes from the other end is short; a longer message loses its tail, which is text for people.
_MAX_REPORT_BYTES = 4096

Received = Callable[[str, int, Sequence[int], bytes, list[int]], None]


class Line:
    """One such socket on the event loop. `on_message` gets op, id, the numbers, the text and the descriptors, which are
    then its own; `on_gone` is called once, when the peer is gone."""

    def __init__(self, sock: socket.socket, on_message: Received, on_gone: Callable[[], None]) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_message = on_message
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._finishing = False
        self.closed = False
        self._loop.add_reader(sock.fileno(), self._readable)

    def _readable(self) -> None:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(_MAX_REPORT_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, ConnectionResetError):
            # Reset: the peer ended with something unread. What it said before that, and its end, come next.
            return
        except OSError:
            data, ancillary = b"", []
        descriptors: list[int] = []
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors += (fd for (fd,) in _INTS.iter_unpack(payload[: len(payload) // 4 * 4]))
        if len(data) < _HEAD.size:
            for fd in descriptors:
                os.close(fd)
            if not data:
                self.close()
                self._on_gone()
            return
        op, key, *numbers = _HEAD.unpack_from(data)
        # A guest holds one end of some lines, so nothing in it may be more than wrong.
        self._on_message(chr(op) if op < 128 else "?", key, numbers, data[_HEAD.size :], descriptors)

    @staticmethod
    def pack(op: str, key: int, numbers: Sequence[int]) -> bytes:
        """The head of a message."""
        return _HEAD.pack(ord(op), key, *(*numbers, 0, 0, 0, 0)[:4])

    def send(
        self, op: str, key: int, numbers: Sequence[int] = (), text: bytes = b"", descriptors: Sequence[int] = ()
    ) -> None:
        """Send a message; descriptors stay the caller's. Raises OSError when the peer is gone."""
        message = self.pack(op, key, numbers) + text
        if len(message) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {len(message)} bytes; the most is {MAX_MESSAGE_BYTES}")
        if not self._waiting:
            try:
                socket.send_fds(self._sock, [message], list(descriptors))
            except BlockingIOError:
                pass
            else:
                return
            self._loop.add_writer(self._sock.fileno(), self._writable)
        self._waiting.append((message, tuple(os.dup(fd) for fd in descriptors)))

    def _writable(self) -> None:
        try:
            while self._waiting:
                message, descriptors = self._waiting[0]
                socket.send_fds(self._sock, [message], list(descriptors))
                self._waiting.popleft()
                for fd in descriptors:
                    os.close(fd)
        except BlockingIOError:
            return
        except OSError:
            self._drop()
        self._loop.remove_writer(self._sock.fileno())
        if self._finishing:
            self.close()

    def _drop(self) -> None:
        while self._waiting:
            for fd in self._waiting.popleft()[1]:
                os.close(fd)

    def finish(self) -> None:
        """Close the socket when everything is sent; nothing more is heard."""
        if self._waiting:
            self._finishing = True
        else:
            self.close()

    def close(self) -> None:
        """Close the socket. May be called twice."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock.fileno())
        if self._waiting:
            self._loop.remove_writer(self._sock.fileno())
            self._drop()
        self._sock.close()
