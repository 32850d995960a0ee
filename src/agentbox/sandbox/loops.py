# SPDX-License-Identifier: MIT
"""The event loop behind the synchronous faces: one thread for all sandboxes of a process."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
_lock = threading.Lock()
_running: tuple[int, asyncio.AbstractEventLoop] | None = None


def loop() -> asyncio.AbstractEventLoop:
    """The loop, started at the first use; a forked child gets one of its own."""
    global _running
    with _lock:
        if _running is None or _running[0] != os.getpid():
            made = asyncio.new_event_loop()
            threading.Thread(target=made.run_forever, name="agentbox-sandbox", daemon=True).start()
            _running = os.getpid(), made
        return _running[1]


def call(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on the loop and wait for it; a KeyboardInterrupt here cancels it there."""
    future = asyncio.run_coroutine_threadsafe(work, loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def at_exit(work: Any) -> None:
    """Have a function called before the interpreter ends, while the loop still runs."""
    atexit.register(work)


def not_at_exit(work: Any) -> None:
    """Forget `at_exit`."""
    atexit.unregister(work)
