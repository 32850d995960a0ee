# SPDX-License-Identifier: MIT
"""Files are forced to disk beside the runs that wrote them: whoever answers a caller does not wait for a disk."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque

_log = logging.getLogger("agentbox.trace")
# With so many files waiting, whoever brings another one waits for the disk too.
MAX_WAITING = 256


class DiskSync:
    """A thread that forces files to disk in the order in which they come, so that a ledger is on disk after the traces
    that it speaks of; it lives from the first file to `close`.

    A file that cannot be forced is logged: a trace of it, after a crash of the machine, shows what is missing.
    """

    def __init__(self) -> None:
        self._waiting: deque[int] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def take(self, descriptor: int) -> None:
        """Force a file to disk soon; the descriptor is this object's from now on. May be called from any thread."""
        with self._changed:
            while not self._closed and len(self._waiting) >= MAX_WAITING:
                self._changed.wait()
            if not self._closed:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="agentbox-disk", daemon=True)
                    self._thread.start()
                self._waiting.append(descriptor)
                self._changed.notify_all()
                return
        _force(descriptor)

    def close(self) -> None:
        """Wait until everything that was taken is on disk. What comes later is forced by whoever brings it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._closed:
                        return
                    self._changed.wait()
                descriptor = self._waiting.popleft()
                self._changed.notify_all()
            _force(descriptor)


def _force(descriptor: int) -> None:
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        _log.error("a trace cannot be forced to disk: %s", error.strerror)
    finally:
        os.close(descriptor)
