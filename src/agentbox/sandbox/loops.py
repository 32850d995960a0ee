# SPDX-License-Identifier: MIT
"""The event loop behind the synchronous faces: one thread for all sandboxes of a process."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
_lock = threading.Lock()
_running: tuple[int, asyncio.AbstractEventLoop] | None = None
_ending: list[Callable[[], None]] = []
_registered = False


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


def at_exit(work: Callable[[], None]) -> None:
    """Have a function called before the interpreter ends, while the loop, and threads for it, can still run."""
    global _registered
    with _lock:
        _ending.append(work)
        if not _registered:
            # What `atexit` calls comes after the pools of threads are closed, without which nothing can be stopped.
            register = getattr(threading, "_register_atexit", atexit.register)
            register(_end)
            _registered = True


def not_at_exit(work: Callable[[], None]) -> None:
    """Forget `at_exit`."""
    with _lock, contextlib.suppress(ValueError):
        _ending.remove(work)


def _end() -> None:
    for work in tuple(_ending):
        with contextlib.suppress(Exception):
            work()
