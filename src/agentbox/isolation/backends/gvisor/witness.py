# SPDX-License-Identifier: MIT
"""What gVisor's kernel saw its programs do, handed on while they run."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from agentbox.isolation.backends.gvisor.events import packet_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_PACKET_BYTES = 1 << 17
_BUFFER_BYTES = 8 << 20
_AT_ONCE = 256
_END_SECONDS = 10


class Witness:
    """The owner's end of a box's trace stream. `theirs` is gVisor's end, to be closed when gVisor has it."""

    def __init__(self, on_report: Callable[[dict[str, Any]], None]) -> None:
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # gVisor does not wait: what does not fit into the sender's buffer is dropped, and counted.
        for option in (socket.SO_SNDBUF, 32):  # SO_SNDBUFFORCE
            with contextlib.suppress(OSError):
                self.theirs.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self._ours.setblocking(False)
        self._on_report = on_report
        self._dropped = 0
        self._at_end = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._ours, self._read)

    def _read(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                data = self._ours.recv(_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._loop.remove_reader(self._ours)
                self._at_end.set()
                return
            packet = packet_of(data)
            if packet.dropped > self._dropped:
                self._on_report({"lost": {"count": packet.dropped - self._dropped}})
                self._dropped = packet.dropped
            if packet.report is not None:
                self._on_report(packet.report)

    async def finish(self) -> None:
        """Wait until everything that was sent is handed on; gVisor must have ended, or be about to."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self._at_end.wait()

    def close(self) -> None:
        """Read nothing more. May be called twice."""
        self.theirs.close()
        if self._ours.fileno() >= 0:
            self._loop.remove_reader(self._ours)
            self._ours.close()
            self._at_end.set()
