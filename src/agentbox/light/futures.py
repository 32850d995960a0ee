# SPDX-License-Identifier: MIT
"""Futures and tasks of the light loop, with the meaning of asyncio's."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import CancelledError, Future, InvalidStateError, Task
else:
    import sys

    class CancelledError(BaseException):
        """The future or task was cancelled."""

    class InvalidStateError(Exception):
        """The future has no result yet, or has one already."""

    class Future:
        """A result that comes later."""

        def __init__(self, loop):
            self._loop = loop
            self._state = "pending"
            self._result = None
            self._error = None
            self._callbacks = []
            self._looked_at = True

        def done(self):
            """Whether it has a result, an exception, or was cancelled."""
            return self._state != "pending"

        def cancelled(self):
            """Whether it was cancelled."""
            return self._state == "cancelled"

        def result(self):
            """The result; raises the exception."""
            if self._state == "cancelled":
                raise CancelledError
            if self._state == "pending":
                raise InvalidStateError("the result is not there yet")
            self._looked_at = True
            if self._error is not None:
                raise self._error
            return self._result

        def exception(self):
            """The exception, None when there is a result."""
            if self._state == "cancelled":
                raise CancelledError
            if self._state == "pending":
                raise InvalidStateError("the exception is not there yet")
            self._looked_at = True
            return self._error

        def set_result(self, result):
            """Give it its result."""
            self._finish("done")
            self._result = result

        def set_exception(self, error):
            """Give it an exception in place of a result."""
            if isinstance(error, type):
                error = error()
            self._finish("done")
            self._error = error
            self._looked_at = False

        def cancel(self, msg=None):
            """Cancel it; False when it is done."""
            del msg
            if self.done():
                return False
            self._finish("cancelled")
            return True

        def add_done_callback(self, callback, *, context=None):
            """Call it with this future, in the loop, when it is done."""
            del context
            if self.done():
                self._loop.call_soon(callback, self)
            else:
                self._callbacks.append(callback)

        def remove_done_callback(self, callback):
            """How many of them there were."""
            before = len(self._callbacks)
            self._callbacks = [one for one in self._callbacks if one != callback]
            return before - len(self._callbacks)

        def _finish(self, state):
            if self._state != "pending":
                raise InvalidStateError("it is done already")
            self._state = state
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                self._loop.call_soon(callback, self)

        def __await__(self):
            if not self.done():
                yield self
            return self.result()

        __iter__ = __await__

        def __del__(self):
            if not self._looked_at and self._error is not None:
                sys.stderr.write(f"{type(self).__name__} exception was never retrieved: {self._error!r}\n")

    # The loop that runs, if any.
    running = None

    def waiter():
        """A future of the loop that runs."""
        return Future(running)

    def settle(future):
        """Wake whoever awaits it, once."""
        if not future.done():
            future.set_result(None)

    class Task(Future):
        """A coroutine at work."""

        def __init__(self, coroutine, loop):
            super().__init__(loop)
            self._coroutine = coroutine
            self._awaited = None
            self._must_cancel = False
            self._asked = 0
            loop.tasks.add(self)
            loop.call_soon(self._step)

        def cancel(self, msg=None):
            """Raise CancelledError in it at its next step; False when it is done."""
            if self.done():
                return False
            self._asked += 1
            if self._awaited is not None and self._awaited.cancel(msg):
                return True
            self._must_cancel = True
            return True

        def cancelling(self):
            """How often it was asked to end."""
            return self._asked

        def uncancel(self):
            """Take one of those back."""
            if self._asked:
                self._asked -= 1
                if not self._asked:
                    self._must_cancel = False
            return self._asked

        def _wake(self, future):
            error = None
            if future.cancelled():
                error = CancelledError()
            elif future._error is not None:
                future._looked_at = True
                error = future._error
            self._step(error)

        def _step(self, error=None):
            if self.done():
                return
            if self._must_cancel:
                if not isinstance(error, CancelledError):
                    error = CancelledError()
                self._must_cancel = False
            self._awaited = None
            loop = self._loop
            before, loop.current = loop.current, self
            try:
                awaited = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
            except StopIteration as stop:
                self._end()
                if self._must_cancel:
                    self._must_cancel = False
                    super().cancel()
                else:
                    super().set_result(stop.value)
            except CancelledError:
                self._end()
                super().cancel()
            except (KeyboardInterrupt, SystemExit) as caught:
                self._end()
                super().set_exception(caught)
                raise
            except BaseException as caught:
                self._end()
                super().set_exception(caught)
            else:
                if awaited is None:
                    loop.call_soon(self._step)
                else:
                    awaited.add_done_callback(self._wake)
                    self._awaited = awaited
                    if self._must_cancel and awaited.cancel():
                        self._must_cancel = False
            finally:
                loop.current = before

        def _end(self):
            self._loop.tasks.discard(self)


__all__ = ["CancelledError", "Future", "InvalidStateError", "Task"]
