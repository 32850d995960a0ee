# SPDX-License-Identifier: MIT
"""The runner among the processes of a shell: signals that it gets are the command's, and both stop and go on as one."""

from __future__ import annotations

import os

from agentbox.light import asyncio, contextlib, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from typing import Any

    from agentbox.engine.terminal import Terminal
    from agentbox.isolation.backend import LiveBox

# What ends a command by default, and a terminal's keys; a second one of the same kind ends the whole box.
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_ONCE_OR_OFTEN = (signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """Signals of this process while a command runs in a box. `terminal` is None where the command has none."""

    def __init__(self, box: LiveBox, terminal: Terminal | None) -> None:
        self._box = box
        self._terminal = terminal
        self._key = 0
        self._early: list[int] = []
        self._seen: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    @contextlib.contextmanager
    def passed_on(self) -> Iterator[None]:
        """Pass signals on to the command until the context ends; those that come before it has started wait for it."""
        for number in _PASSED_ON:
            self._loop.add_signal_handler(number, self._pass_on, number)
        for number in _ONCE_OR_OFTEN:
            self._loop.add_signal_handler(number, self._signal, number)
        self._loop.add_signal_handler(signal.SIGTSTP, self._suspend, False)
        self._loop.add_signal_handler(signal.SIGCONT, self._resume)
        try:
            yield
        finally:
            for number in (*_PASSED_ON, *_ONCE_OR_OFTEN, signal.SIGTSTP, signal.SIGCONT):
                self._loop.remove_signal_handler(number)

    def started(self, key: int) -> None:
        """The command runs, as the program `key` of the box."""
        self._key = key
        for number in self._early:
            self._signal(number)
        self._early.clear()

    def suspended_by_key(self) -> None:
        """The terminal's key for it was typed: stop as the terminal would have stopped the whole process group."""
        self._suspend(True)

    def _pass_on(self, number: int) -> None:
        if number in self._seen:
            self._box.kill()
            return
        self._seen.add(number)
        self._signal(number)

    def _signal(self, number: int) -> None:
        if not self._key:
            self._early.append(number)
            return
        self._do(self._box.signal(self._key, number))

    def _suspend(self, whole_group: bool) -> None:
        self._do(self._stop(whole_group))

    async def _stop(self, whole_group: bool) -> None:
        if self._key:
            await self._box.signal(self._key, signal.SIGSTOP)
        if self._terminal is not None:
            self._terminal.release()
        self._loop.remove_signal_handler(signal.SIGTSTP)
        # The default action; a group that nobody could continue is not stopped by it, and goes on at once.
        if whole_group:
            os.killpg(os.getpgrp(), signal.SIGTSTP)
        else:
            os.kill(os.getpid(), signal.SIGTSTP)
        self._loop.add_signal_handler(signal.SIGTSTP, self._suspend, False)
        self._resume()

    def _resume(self) -> None:
        if self._terminal is not None:
            self._terminal.hold()
        self._signal(signal.SIGCONT)

    def _do(self, action: Coroutine[Any, Any, None]) -> None:
        """Begin something that fails only when the box is gone."""
        task = self._loop.create_task(action)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()
