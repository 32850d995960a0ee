# SPDX-License-Identifier: MIT
"""What a run leaves for a thread to do, without waking that thread while the run is ending."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable


class Unhurried:
    """Hands on to `take` what it is given on an event loop, a moment later and all that came meanwhile: a thread that
    wakes up while a run is ending takes the interpreter from it."""

    def __init__(self, take: Callable[[int], None], seconds: float = 0.02) -> None:
        self._take = take
        self._seconds = seconds
        self._waiting: deque[int] = deque()
        self._lock = threading.Lock()
        self._called = self._closed = False

    def take(self, descriptor: int) -> None:
        """See DiskSync. May be called from any thread: without a loop it is handed on at once."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._take(descriptor)
            return
        with self._lock:
            if not self._closed:
                self._waiting.append(descriptor)
                if not self._called:
                    self._called = True
                    loop.call_later(self._seconds, self._hand_on)
                return
        self._take(descriptor)

    def close(self) -> None:
        """Hand on everything; what comes later is handed on at once."""
        with self._lock:
            self._closed = True
        self._hand_on()

    def _hand_on(self) -> None:
        with self._lock:
            self._called = False
            waiting, self._waiting = self._waiting, deque()
        for descriptor in waiting:
            self._take(descriptor)
