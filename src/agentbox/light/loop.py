# SPDX-License-Identifier: MIT
"""An event loop for one short command: the part of asyncio that the engine uses, with asyncio's names and meaning.

Coroutines, futures, cancellation and timeouts behave as those of the standard library, so that the same code runs on
either; tests/unit/light compares the two. What is left out is what `agentbox run` does not use: streams, transports,
executors, debugging, contextvars. Importing the standard library's costs more than running a command.
"""

from __future__ import annotations

from agentbox.light import contexts, futures, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import *  # noqa: F403
else:
    import _thread
    import os
    import select
    import sys
    import time
    from _collections import deque
    from _heapq import heappop, heappush

    from agentbox.light.futures import CancelledError, Future, InvalidStateError, Task, settle
    from agentbox.light.primitives import Event, Lock, Queue

    FIRST_COMPLETED = "FIRST_COMPLETED"
    ALL_COMPLETED = "ALL_COMPLETED"
    _READ = select.POLLIN | select.POLLHUP | select.POLLERR
    _WRITE = select.POLLOUT | select.POLLHUP | select.POLLERR
    _running = None

    class _Timer:
        __slots__ = ("arguments", "callback", "cancelled", "order", "when")

        def __init__(self, when, order, callback, arguments):
            self.when, self.order, self.callback, self.arguments = when, order, callback, arguments
            self.cancelled = False

        def __lt__(self, other):
            return (self.when, self.order) < (other.when, other.order)

        def cancel(self):
            """Do not call it."""
            self.cancelled = True

    class Loop:
        """Calls back what is ready, what is due, and what a descriptor or a signal woke."""

        def __init__(self):
            self._ready = deque()
            self._timers = []
            self._order = 0
            self._readers = {}
            self._writers = {}
            self._signals = {}
            self._poll = select.poll()
            self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            self._poll.register(self._wake_read, select.POLLIN)
            self._called = deque()
            self.tasks = set()
            self.current = None

        def time(self):
            """The monotonic clock, in seconds."""
            return time.monotonic()

        def create_future(self):
            """A future of this loop."""
            return Future(self)

        def create_task(self, coroutine, *, name=None):
            """Begin to run a coroutine."""
            del name
            return Task(coroutine, self)

        def call_soon(self, callback, *arguments):
            """Call it in the next round."""
            self._ready.append((callback, arguments))

        def call_soon_threadsafe(self, callback, *arguments):
            """Call it in the next round; from any thread."""
            self._called.append((callback, arguments))
            self._wake()

        def call_at(self, when, callback, *arguments):
            """Call it at a time of this loop's clock."""
            self._order += 1
            timer = _Timer(when, self._order, callback, arguments)
            heappush(self._timers, timer)
            return timer

        def call_later(self, delay, callback, *arguments):
            """Call it after some seconds."""
            return self.call_at(self.time() + delay, callback, *arguments)

        def add_reader(self, descriptor, callback, *arguments):
            """Call it whenever there is something to read."""
            self._readers[_number(descriptor)] = (callback, arguments)
            self._watch(_number(descriptor))

        def add_writer(self, descriptor, callback, *arguments):
            """Call it whenever something can be written."""
            self._writers[_number(descriptor)] = (callback, arguments)
            self._watch(_number(descriptor))

        def remove_reader(self, descriptor):
            """Stop watching; whether it was watched."""
            found = self._readers.pop(_number(descriptor), None)
            self._watch(_number(descriptor))
            return found is not None

        def remove_writer(self, descriptor):
            """Stop watching; whether it was watched."""
            found = self._writers.pop(_number(descriptor), None)
            self._watch(_number(descriptor))
            return found is not None

        def add_signal_handler(self, number, callback, *arguments):
            """Call it, in the loop, when the signal comes."""
            self._signals[number] = (callback, arguments)
            signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
            signal.signal(number, _ignore)
            signal.siginterrupt(number, False)

        def remove_signal_handler(self, number):
            """Give the signal its default action back; whether it was handled here."""
            if self._signals.pop(number, None) is None:
                return False
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            return True

        async def sock_accept(self, sock):
            """A connection, which does not block, and its address."""
            while True:
                try:
                    connection, address = sock.accept()
                except BlockingIOError:
                    await self._when(self.add_reader, self.remove_reader, sock)
                    continue
                connection.setblocking(False)
                return connection, address

        async def sock_recv(self, sock, size):
            """Up to `size` bytes, none at the end."""
            while True:
                try:
                    return sock.recv(size)
                except BlockingIOError:
                    await self._when(self.add_reader, self.remove_reader, sock)

        async def sock_sendall(self, sock, data):
            """Write everything."""
            view = memoryview(data)
            while view:
                try:
                    view = view[sock.send(view) :]
                except BlockingIOError:
                    await self._when(self.add_writer, self.remove_writer, sock)

        async def _when(self, add, remove, sock):
            ready = Future(self)
            descriptor = sock.fileno()
            add(descriptor, settle, ready)
            try:
                await ready
            finally:
                remove(descriptor)

        def run_until(self, task):
            """Run rounds until the task is done."""
            while not task.done():
                self._round()

        def close(self):
            """Let go of descriptors and signals."""
            for number in list(self._signals):
                self.remove_signal_handler(number)
            signal.set_wakeup_fd(-1)
            os.close(self._wake_read)
            os.close(self._wake_write)

        def wake_for_signals(self):
            """Let a signal end the wait, whoever handles it."""
            signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

        def _round(self):
            timers = self._timers
            while timers and timers[0].cancelled:
                heappop(timers)
            if self._ready or self._called:
                wait = 0
            elif timers:
                # Rounded up, so that a timer is due when the wait ends.
                wait = max(0, min(int((timers[0].when - time.monotonic()) * 1000) + 1, 86_400_000))
            else:
                wait = None
            for descriptor, events in self._poll.poll(wait):
                if descriptor == self._wake_read:
                    self._woken()
                    continue
                if events & _READ and descriptor in self._readers:
                    self._ready.append(self._readers[descriptor])
                if events & _WRITE and descriptor in self._writers:
                    self._ready.append(self._writers[descriptor])
            while self._called:
                self._ready.append(self._called.popleft())
            now = time.monotonic()
            while timers and timers[0].when <= now:
                timer = heappop(timers)
                if not timer.cancelled:
                    self._ready.append((timer.callback, timer.arguments))
            for _ in range(len(self._ready)):
                callback, arguments = self._ready.popleft()
                try:
                    callback(*arguments)
                except Exception:
                    sys.excepthook(*sys.exc_info())

        def _wake(self):
            try:
                os.write(self._wake_write, b"\0")
            except BlockingIOError:
                return

        def _woken(self):
            try:
                numbers = os.read(self._wake_read, 4096)
            except BlockingIOError:
                return
            for number in numbers:
                if number in self._signals:
                    self._ready.append(self._signals[number])

        def _watch(self, descriptor):
            events = (_READ if descriptor in self._readers else 0) | (_WRITE if descriptor in self._writers else 0)
            if events:
                self._poll.register(descriptor, events)
            else:
                try:
                    self._poll.unregister(descriptor)
                except KeyError:
                    return

    def _ignore(_number, _frame):
        """The wakeup descriptor carries the signal to the loop."""

    def _number(descriptor):
        return descriptor if isinstance(descriptor, int) else descriptor.fileno()

    class timeout:  # noqa: N801 - the standard library's name
        """See `asyncio.timeout`."""

        def __init__(self, seconds):
            self._seconds = seconds
            self._timer = None
            self._expired = False

        async def __aenter__(self):
            self._task = _running.current
            self._before = self._task.cancelling()
            if self._seconds is not None:
                self._timer = _running.call_later(self._seconds, self._expire)
            return self

        async def __aexit__(self, kind, error, trace):
            if self._timer is not None:
                self._timer.cancel()
            if self._expired and self._task.uncancel() <= self._before and kind is CancelledError:
                raise TimeoutError from error

        def _expire(self):
            self._expired = True
            self._task.cancel()

    def get_running_loop():
        """The loop of the coroutine that calls."""
        if _running is None:
            raise RuntimeError("no running event loop")
        return _running

    def current_task():
        """The task that runs now."""
        return get_running_loop().current

    def create_task(coroutine, *, name=None):
        """Begin to run a coroutine."""
        return get_running_loop().create_task(coroutine, name=name)

    def ensure_future(awaitable):
        """The future itself, or a task that awaits it."""
        return awaitable if isinstance(awaitable, Future) else get_running_loop().create_task(awaitable)

    async def sleep(seconds):
        """Let others run, and go on after some seconds."""
        if seconds <= 0:
            await _Bare()
            return
        waiter = Future(get_running_loop())
        timer = _running.call_later(seconds, settle, waiter)
        try:
            await waiter
        finally:
            timer.cancel()

    class _Bare:
        def __await__(self):
            yield

    async def wait(futures, *, timeout=None, return_when=ALL_COMPLETED):
        """See `asyncio.wait`."""
        futures = set(futures)
        waiter = Future(get_running_loop())

        def note(_done):
            if return_when == FIRST_COMPLETED or all(one.done() for one in futures):
                settle(waiter)

        if not (all if return_when == ALL_COMPLETED else any)(one.done() for one in futures):
            timer = None if timeout is None else _running.call_later(timeout, settle, waiter)
            for one in futures:
                one.add_done_callback(note)
            try:
                await waiter
            finally:
                if timer is not None:
                    timer.cancel()
                for one in futures:
                    one.remove_done_callback(note)
        done = {one for one in futures if one.done()}
        return done, futures - done

    def gather(*awaitables, return_exceptions=False):
        """See `asyncio.gather`."""
        children = [ensure_future(one) for one in awaitables]
        outer = _Gathered(get_running_loop(), children)

        def note(child):
            if outer.done():
                if not child.cancelled():
                    child.exception()
                return
            if not return_exceptions and child.cancelled():
                outer.set_exception(CancelledError())
            elif not return_exceptions and child.exception() is not None:
                outer.set_exception(child.exception())
            elif all(one.done() for one in children):
                if outer.asked_to_cancel:
                    outer.set_exception(CancelledError())
                    return
                outer.set_result([_outcome(one) for one in children])

        for child in children:
            child.add_done_callback(note)
        if not children:
            outer.set_result([])
        return outer

    class _Gathered(Future):
        def __init__(self, loop, children):
            super().__init__(loop)
            self._children = children
            self.asked_to_cancel = False

        def cancel(self, msg=None):
            """Cancel what is awaited."""
            if self.done():
                return False
            asked = [child.cancel(msg) for child in self._children]
            self.asked_to_cancel = self.asked_to_cancel or any(asked)
            return any(asked)

    def _outcome(child):
        if child.cancelled():
            return CancelledError()
        return child.exception() or child.result()

    def shield(awaitable):
        """See `asyncio.shield`."""
        inner = ensure_future(awaitable)
        if inner.done():
            return inner
        outer = Future(get_running_loop())

        def note(done):
            if outer.cancelled():
                if not done.cancelled():
                    done.exception()
            elif done.cancelled():
                outer.cancel()
            elif done.exception() is not None:
                outer.set_exception(done.exception())
            else:
                outer.set_result(done.result())

        inner.add_done_callback(note)
        outer.add_done_callback(lambda _: None if inner.done() else inner.remove_done_callback(note))
        return outer

    async def to_thread(work, /, *values, **named):
        """The result of blocking work in a thread of its own."""
        loop = get_running_loop()
        finished = Future(loop)

        def settle(result, error):
            if finished.done():
                return
            if error is None:
                finished.set_result(result)
            else:
                finished.set_exception(error)

        def begin():
            try:
                result, error = work(*values, **named), None
            except BaseException as caught:
                result, error = None, caught
            with contexts.suppress(OSError):
                loop.call_soon_threadsafe(settle, result, error)

        _thread.start_new_thread(begin, ())
        return await finished

    def run(main):
        """Run a coroutine to its end, then end what it left. Ctrl-C cancels it and is KeyboardInterrupt afterwards."""
        global _running
        loop = Loop()
        _running = futures.running = loop
        task = loop.create_task(main)
        interrupted = []

        def on_interrupt(_number, _frame):
            interrupted.append(True)
            if len(interrupted) > 1 or task.done():
                raise KeyboardInterrupt
            loop.call_soon_threadsafe(task.cancel)

        ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if ours:
            loop.wake_for_signals()
            signal.signal(signal.SIGINT, on_interrupt)
        try:
            loop.run_until(task)
            try:
                return task.result()
            except CancelledError:
                if interrupted:
                    raise KeyboardInterrupt from None
                raise
        finally:
            left = [one for one in loop.tasks if not one.done()]
            for one in left:
                one.cancel()
            for one in left:
                loop.run_until(one)
            if ours and signal.getsignal(signal.SIGINT) is on_interrupt:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            loop.close()
            _running = futures.running = None


__all__ = [
    "ALL_COMPLETED",
    "FIRST_COMPLETED",
    "CancelledError",
    "Event",
    "Future",
    "InvalidStateError",
    "Lock",
    "Queue",
    "Task",
    "create_task",
    "current_task",
    "ensure_future",
    "gather",
    "get_running_loop",
    "run",
    "shield",
    "sleep",
    "timeout",
    "to_thread",
    "wait",
]
