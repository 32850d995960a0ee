# SPDX-License-Identifier: MIT
"""The children of a recorded process: how they end, and what is told to the host of each, once."""

from __future__ import annotations

import posix
from _thread import allocate_lock, get_ident, start_new_thread
from posix import close, getpgid, waitid
from time import monotonic

from .channel import text_of
from .effects import Effects
from .seal import Namespace, sealed
from .streams import written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAMES = ("stdout", "stderr")
_STOPPED, _CONTINUED = 0x7F, 0xFFFF
# Interpreters that go on with this program's own work, and answer it by pipes of their own.
_ANEW = ("--multiprocessing-fork", "multiprocessing.forkserver", "multiprocessing.spawn")


@sealed
class Children:
    """The children of one process."""

    def __init__(self, effects: Effects, observations: Any, large: Any) -> None:
        self._effects = effects
        self._observations = observations
        self._large = large
        self._running: dict[int, Any] = {}
        # Those that have ended, and whose output has not.
        self._open: list[Any] = []
        # Children that had ended before this process knew that they had begun, while it starts one.
        self._early: dict[int, Any] = {}
        self._starting = 0
        # Threads of the guard that pass on what children write.
        self._threads = 0

    def lane(self) -> str:
        """The lane of the next child of the caller's."""
        lanes = self._effects.lanes
        lane = lanes.here()
        return f"{lane.name[:54]}|{lanes.number(lane, '|')}"

    def new(self, given: Any, started: Any) -> Any:
        """The record of a child that is about to be started; `begin` or `drop` follows."""
        self._starting += 1
        child = Namespace()
        child.number = given.get("spawn")
        child.lane = self.lane()
        child.code, child.signalled, child.failed, child.told, child.relay = None, False, "", False, None
        child.telling, child.teller = allocate_lock(), 0
        child.files = []
        # Which of its streams is the run's own terminal.
        child.terminal = 0
        child.began, child.seconds, child.polls = monotonic(), None, 0
        # What it gives, or is given, goes through pipes that are not looked into: it cannot be answered.
        child.is_beyond = any(word in " ".join(started["argv"]) for word in _ANEW)
        return child

    def begin(self, pid: int, child: Any) -> None:
        """A child runs: pass on what it writes until there is no more."""
        self._running[pid] = child
        self._starting -= 1
        code = self._early.pop(pid, None)
        if not self._starting:
            self._early.clear()
        if code is not None:
            self._over(self._running.pop(pid), code)
        relay = child.relay
        if relay.is_over() and not relay.is_fed:
            return

        def run() -> None:
            try:
                relay.run()
                if child.code is not None:
                    self.tell(child)
            finally:
                self._threads -= 1

        self._threads += 1
        start_new_thread(run, ())

    def relaying(self) -> int:
        """How many threads this process has of which the program knows nothing."""
        return int(self._threads)

    def drop(self, child: Any) -> None:
        """A child could not be started."""
        self._starting -= 1
        _release(child)

    def reaped(self, pid: int, status: Any, code: Any = None) -> None:
        """A child has ended: by the status of `wait`, or by its code. Its output is passed on before this returns."""
        if status is not None:
            if status & 0xFF == _STOPPED or status == _CONTINUED:
                return
            code = -(status & 0x7F) if status & 0x7F else status >> 8
        child = self._running.pop(pid, None)
        if child is None:
            if self._starting:
                self._early[pid] = code
            return
        self._over(child, code)

    def ends(self) -> None:
        """This process ends: what is known of its children is told."""
        for pid, child in list(self._running.items()):
            try:
                found = waitid(posix.P_PID, pid, posix.WEXITED | posix.WNOHANG | posix.WNOWAIT)
            except OSError:
                found = None
            if found is not None and found.si_pid == pid:
                child.code = found.si_status if found.si_code == posix.CLD_EXITED else -found.si_status
        for child in [*self._running.values(), *self._open]:
            child.relay.settle()
            self.tell(child)
        self._running.clear()
        self._open.clear()

    def forked(self) -> None:
        """In the child after a fork: what the parent started is not its own."""
        for child in [*self._running.values(), *self._open]:
            _release(child)
        self._running.clear()
        self._open.clear()
        self._early.clear()
        self._starting = self._threads = 0

    def signalled(self, pid: Any, number: Any) -> None:
        """This process sends a signal."""
        child = self._running.get(pid)
        if child is not None and number:
            child.signalled = True

    def group_signalled(self, group: Any, number: Any) -> None:
        """This process sends a signal to a group."""
        for pid, child in list(self._running.items()):
            try:
                child.signalled = child.signalled or bool(number and getpgid(pid) == group)
            except OSError:
                continue

    def tell(self, child: Any) -> None:
        """Hand over what a child gave, once. Nobody returns from here before that is done: what the program shows next
        is not the child's."""
        if child.teller == get_ident():
            # A handler of the program's, called while this thread tells.
            return
        with child.telling:
            if not child.told and child.number is not None:
                child.teller = get_ident()
                child.told = True
                self._tell(child)

    def _tell(self, child: Any) -> None:
        if child.is_beyond:
            # Without a result the replay says that it cannot be answered.
            return
        relay = child.relay
        args: dict[str, Any] = {"spawn": child.number, "code": child.code}
        with relay.lock:
            for stream, kept in relay.kept.items():
                args[_NAMES[stream - 1]] = kept.value()
            to_files = written(child.files, self._observations.open_again, self._large.collector)
            args.update({_NAMES[stream - 1]: kept for stream, kept in to_files.items()})
            if not to_files and (len(relay.kept) > 1 or relay.is_fed):
                args["chunks"] = [list(chunk) for chunk in relay.chunks]
            if child.signalled:
                args["signalled"] = True
            if child.seconds is not None:
                args["milliseconds"] = int(child.seconds * 1000)
            if child.polls:
                args["polls"] = child.polls
            if child.failed:
                args["failed"] = child.failed
            if not relay.is_over():
                args["open"] = True
            if relay.is_fed:
                args["fed"] = relay.has_all_input
            given = relay.given() if relay.has_all_input else None
        lane = text_of(child.lane)
        frame = '{{"id":0,"kind":"observe","op":"{}","args":{},"lane":{}}}'
        send = self._effects.channel.send
        if given is not None:
            send(frame.format("proc.stdin", text_of(given), lane).encode("ascii"))
        if child.terminal:
            # The host knows what was shown meanwhile, when it is asked before anything else is.
            self._effects.ask("observe", "proc.result", text_of({**args, "terminal": child.terminal}), child.lane)
        else:
            send(frame.format("proc.result", text_of(args), lane).encode("ascii"))

    def polled(self, pid: Any) -> None:
        """Somebody asked whether a child had ended, and it had not."""
        child = self._running.get(pid)
        if child is not None:
            child.polls += 1

    def _over(self, child: Any, code: Any) -> None:
        child.code = code
        child.seconds = monotonic() - child.began
        child.relay.settle()
        child.relay.ended()
        if child.relay.is_over():
            self.tell(child)
        else:
            self._open.append(child)


def _release(child: Any) -> None:
    """Close what the guard has open for a child."""
    if child.relay is not None:
        child.relay.drop()
    for _, copy, _ in child.files:
        close(copy)
    child.files.clear()
