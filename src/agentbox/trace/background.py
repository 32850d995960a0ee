# SPDX-License-Identifier: MIT
"""Traces that a thread writes: whoever has something to tell hands it over and waits for no disk.

One thread writes all such traces of a process. What is handed over is in the kernel's hands 200 ms later, so that what
comes together costs one turn of the thread and one write. A trace that lives for days is kept in parts: when one has
grown enough it is sealed and put aside as `NAME.1.jsonl`, `NAME.2.jsonl`, ..., and the next begins where the first was,
naming the one before. The oldest parts are removed where there are too many. Each part verifies by itself.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from concurrent.futures import Future

from agentbox.errors import TraceError
from agentbox.light import contextlib, digests
from agentbox.records import dataclass
from agentbox.trace.ledger import Ledger
from agentbox.trace.record import RUN_END
from agentbox.trace.syncing import DiskSync
from agentbox.trace.writer import Run, TraceWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from agentbox.trace.keys import KeyStore, SigningKey
    from agentbox.trace.record import Kind, Origin
    from agentbox.trace.writer import Head

CONTINUED = "trace.continued"
# Of one trace: parts of this size, so many of them besides the one that is being written.
PART_BYTES = 64 << 20
KEPT_PARTS = 7
# So many records of a guest's doing may wait for a disk that stands still; what comes then is counted.
MAX_WAITING = 10_000
# The ledger learns this often how long a trace is: it would grow by a line a second for days.
LEDGER_SECONDS = 10.0
# The ledger is written anew for as many removed traces at once.
_FORGET_TOGETHER = 64
_AT_ONCE = 256
_TICK_SECONDS = 0.5
_TOGETHER_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Subject:
    """What a trace is of: where its first record says so, the hash of the policy, and further facts."""

    path: str
    policy_sha256: str
    details: Mapping[str, Any]


class TraceLog:
    """One trace. To be used from one thread, which is not the writing one. `on_failure` is called there, once, when
    nothing more can be recorded."""

    def __init__(
        self,
        subject: Subject,
        keys: KeyStore,
        on_failure: Callable[[TraceError], None] = lambda _: None,
        *,
        part_bytes: int = PART_BYTES,
        kept_parts: int = KEPT_PARTS,
    ) -> None:
        self.path = subject.path
        self.failure: TraceError | None = None
        self._subject = subject
        self._keys = keys
        self._on_failure = on_failure
        self._part_bytes = part_bytes
        self._kept_parts = kept_parts
        self._thread = _writing_thread()
        self._key: SigningKey | None = None
        self._writer: TraceWriter | None = None
        self._part = 1
        self._runs: list[str] = []
        self._given = 0
        self._taken = 0
        self._lost = 0

    # ---- for its owner

    def open(self) -> Future[None]:
        """Make the file and write the first record. The future raises TraceError."""
        return self._ask(self._open)

    def append(
        self,
        kind: Kind,
        op: str,
        args: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        *,
        origin: Origin = "supervisor",
        pid: int | None = None,
        lane: str | None = None,
        on_index: Callable[[int], None] | None = None,
        may_be_lost: bool = False,
    ) -> None:
        """Have a record written. `args` are not changed any more, or are what the writing thread calls for them.
        `on_index` is told its index, by the writing thread. What `may_be_lost` is only counted while too much is
        waiting; a record `witness.lost` tells how many."""
        if self.failure is not None:
            return
        if may_be_lost and self._given - self._taken > MAX_WAITING:
            self._lost += 1
            return
        if self._lost:
            lost, self._lost = self._lost, 0
            self.append("observe", "witness.lost", {"count": lost}, origin="kernel")
        self._given += 1
        self._thread.give(self, (kind, op, args, origin, pid, lane, on_index))

    def seal(self, returncode: int, details: Mapping[str, Any]) -> Future[Head | None]:
        """Write the end and seal the trace. The future gives None where nothing could be recorded any more."""
        return self._ask(lambda: self._seal(returncode, details))

    def settled(self) -> Future[None]:
        """A future that is done when everything that was handed over so far is in the kernel's hands."""
        return self._ask(self._flush)

    def forget(self) -> None:
        """The files are removed, so the ledger need not know them any more. After `seal`."""
        self._thread.give(self, lambda: self._thread.forget(self._keys, self._runs))

    # ---- in the writing thread

    def _ask(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()

        def answer() -> None:
            try:
                result = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._thread.ask(self, answer)
        return future

    def _open(self) -> None:
        self._key = self._keys.load_or_create()
        self._key.prepare()
        digests.use_the_fastest()
        self._begin({})

    def _begin(self, further: Mapping[str, Any]) -> None:
        assert self._key is not None
        subject = self._subject
        run = Run(
            id=os.urandom(16).hex(),
            policy_sha256=subject.policy_sha256,
            details={**subject.details, "part": self._part, **further},
        )
        self._writer = TraceWriter(
            subject.path,
            run,
            self._key,
            Ledger(self._keys.ledger, force=self._thread.sync.take),
            # Parts end before.
            max_bytes=self._part_bytes * 2 + (16 << 20),
            force_checkpoints=False,
            force=self._thread.sync.take,
            ledger_seconds=LEDGER_SECONDS,
        )
        self._runs.append(run.id)

    def take(self, given: tuple[Any, ...]) -> None:
        """Write a record."""
        self._taken += 1
        writer = self._writer
        if writer is None or self.failure is not None:
            return
        kind, op, args, origin, pid, lane, on_index = given
        try:
            if callable(args):
                args = args()
            index = writer.append(kind, op, args, origin=origin, pid=pid, lane=lane)
            if writer.written_bytes >= self._part_bytes:
                self._continue(writer)
        except TraceError as error:
            self._failed(error)
            return
        if on_index is not None:
            on_index(index)

    def _continue(self, writer: TraceWriter) -> None:
        """Seal the part that is full and begin the next."""
        writer.append("meta", CONTINUED, {"part": self._part + 1})
        head = writer.seal()
        aside = self._aside(self._part)
        try:
            os.rename(self.path, aside)
        except OSError as error:
            raise TraceError(
                f"{self.path}: cannot be put aside: {error.strerror}", hint="check the directory"
            ) from error
        former = {"run": writer.run.id, "count": head.count, "head": head.sha}
        self._part += 1
        self._begin({"continues": former})
        if self._part - 1 > self._kept_parts:
            with contextlib.suppress(OSError):
                os.unlink(self._aside(self._part - 1 - self._kept_parts))
            self._thread.forget(self._keys, [self._runs.pop(0)])

    def _aside(self, part: int) -> str:
        base, suffix = os.path.splitext(self.path)
        return f"{base}.{part}{suffix}"

    def _flush(self) -> None:
        if self._writer is not None and self.failure is None:
            try:
                self._writer.flush()
            except TraceError as error:
                self._failed(error)

    def tick(self) -> bool:
        """Sign what is to be signed; whether there will be more to."""
        if self._writer is None or self.failure is not None:
            return False
        try:
            self._writer.tick()
        except TraceError as error:
            self._failed(error)
            return False
        return not self._writer.is_signed

    def _seal(self, returncode: int, details: Mapping[str, Any]) -> Head | None:
        writer, self._writer = self._writer, None
        if writer is None:
            return None
        try:
            if writer.failed or self.failure is not None:
                return None
            writer.append("meta", RUN_END, {"returncode": returncode, **details})
            return writer.seal()
        except TraceError as error:
            self._failed(error)
            return None
        finally:
            writer.close()

    def _failed(self, error: TraceError) -> None:
        if self.failure is None:
            self.failure = error
            self._on_failure(error)


def parts_of(path: str) -> list[str]:
    """The files of a trace in their order, those that were removed left out; `path` itself is the last."""
    base, suffix = os.path.splitext(os.path.basename(path))
    directory = os.path.dirname(path) or "."
    numbered = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            number = name.removeprefix(f"{base}.").removesuffix(suffix)
            if name == f"{base}.{number}{suffix}" and number.isdecimal():
                numbered[int(number)] = os.path.join(directory, name)
    return [*(numbered[number] for number in sorted(numbered)), *([path] if os.path.exists(path) else [])]


class _WritingThread:
    """The thread of one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.sync = DiskSync()
        self._queue: queue.SimpleQueue[tuple[TraceLog, Any]] = queue.SimpleQueue()
        # Somebody waits for an answer.
        self._urgent = threading.Event()
        self._unsigned: set[TraceLog] = set()
        self._removed: dict[str, tuple[KeyStore, set[str]]] = {}
        self._ticked = 0.0
        threading.Thread(target=self._work, name="agentbox-traces", daemon=True).start()

    def give(self, log: TraceLog, what: Any) -> None:
        """Hand over a record, or something to be called."""
        self._queue.put((log, what))

    def ask(self, log: TraceLog, what: Callable[[], None]) -> None:
        """Have something called soon."""
        self._queue.put((log, what))
        self._urgent.set()

    def forget(self, keys: KeyStore, runs: list[str]) -> None:
        """Traces were removed; in the writing thread."""
        known = self._removed.setdefault(keys.ledger, (keys, set()))[1]
        known.update(runs)
        if len(known) >= _FORGET_TOGETHER:
            del self._removed[keys.ledger]
            with contextlib.suppress(TraceError):
                Ledger(keys.ledger).forget(known)

    def _work(self) -> None:
        while True:
            touched = set()
            try:
                given = self._queue.get(timeout=_TICK_SECONDS if self._unsigned else None)
                self._urgent.wait(_TOGETHER_SECONDS)
                self._urgent.clear()
                for at_once in range(1, _AT_ONCE + 1):
                    log, what = given
                    if callable(what):
                        what()
                    else:
                        log.take(what)
                        touched.add(log)
                    if at_once < _AT_ONCE:
                        given = self._queue.get_nowait()
            except queue.Empty:
                pass
            for log in touched:
                log._flush()
            self._unsigned |= touched
            now = time.monotonic()
            if now - self._ticked >= _TICK_SECONDS:
                self._ticked = now
                self._unsigned = {log for log in self._unsigned if log.tick()}


_lock = threading.Lock()
_thread: _WritingThread | None = None


def _writing_thread() -> _WritingThread:
    """That of this process; a forked child gets one of its own."""
    global _thread
    with _lock:
        if _thread is None or _thread.pid != os.getpid():
            _thread = _WritingThread()
        return _thread
