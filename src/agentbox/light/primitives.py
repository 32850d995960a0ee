# SPDX-License-Identifier: MIT
"""Event, Lock and Queue of the light loop, with the meaning of asyncio's."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import Event, Lock, Queue
else:
    from _collections import deque

    from agentbox.light import futures
    from agentbox.light.futures import CancelledError

    class Event:
        """See `asyncio.Event`."""

        def __init__(self):
            self._set = False
            self._waiting = []

        def is_set(self):
            """Whether it is set."""
            return self._set

        def set(self):
            """Wake all that wait."""
            self._set = True
            for waiter in self._waiting:
                futures.settle(waiter)

        def clear(self):
            """Let later ones wait."""
            self._set = False

        async def wait(self):
            """Until it is set."""
            if self._set:
                return True
            waiter = futures.waiter()
            self._waiting.append(waiter)
            try:
                await waiter
                return True
            finally:
                self._waiting.remove(waiter)

    class Lock:
        """See `asyncio.Lock`: the one that waits longest is next."""

        def __init__(self):
            self._held = False
            self._waiting = deque()

        def locked(self):
            """Whether somebody holds it."""
            return self._held

        async def acquire(self):
            """Take it, when it is free."""
            if not self._held and all(waiter.cancelled() for waiter in self._waiting):
                self._held = True
                return True
            waiter = futures.waiter()
            self._waiting.append(waiter)
            try:
                try:
                    await waiter
                finally:
                    self._waiting.remove(waiter)
            except CancelledError:
                if not self._held:
                    self._wake()
                raise
            self._held = True
            return True

        def release(self):
            """Give it back."""
            if not self._held:
                raise RuntimeError("the lock is not held")
            self._held = False
            self._wake()

        def _wake(self):
            if self._waiting:
                futures.settle(self._waiting[0])

        async def __aenter__(self):
            await self.acquire()

        async def __aexit__(self, *_):
            self.release()

    class Queue:
        """See `asyncio.Queue`, without a bound."""

        def __init__(self):
            self._items = deque()
            self._waiting = deque()

        def empty(self):
            """Whether nothing is in it."""
            return not self._items

        def put_nowait(self, item):
            """Add an item."""
            self._items.append(item)
            self._wake()

        def get_nowait(self):
            """The oldest item; IndexError when there is none."""
            return self._items.popleft()

        async def get(self):
            """The oldest item, when there is one."""
            while not self._items:
                waiter = futures.waiter()
                self._waiting.append(waiter)
                try:
                    await waiter
                except BaseException:
                    waiter.cancel()
                    if waiter in self._waiting:
                        self._waiting.remove(waiter)
                    if self._items and not waiter.cancelled():
                        self._wake()
                    raise
            return self._items.popleft()

        def _wake(self):
            while self._waiting:
                waiter = self._waiting.popleft()
                if not waiter.done():
                    waiter.set_result(None)
                    return


__all__ = ["Event", "Lock", "Queue"]
