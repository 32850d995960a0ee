# SPDX-License-Identifier: MIT
"""The one writer of a trace.

A record is *kept* once `flush` returned: then it is in the kernel's hands and survives the death of this process.
Whoever answers a guest that waits, or goes to sleep, flushes before. Unflushed records never exceed 64 KiB plus one
record. Every 256 records, and every second while there are new ones, a signed checkpoint follows. It is forced to disk
unless that was done less than 0.1 seconds before; then the next `tick` does it. So a crash of the machine can take what
was recorded since then and no more.

A failure to write (a full disk, a file that somebody else changed) is a TraceError, and every later call fails too:
whoever records a run must then end it. A trace that is longer than it may be is a TraceError too, but its end can still
be recorded and sealed (`failed` is False).
"""

from __future__ import annotations

import os
import time

from agentbox.errors import TraceError
from agentbox.light import digests
from agentbox.records import dataclass
from agentbox.trace import record
from agentbox.trace.canonical import dumps
from agentbox.trace.files import create
from agentbox.trace.ledger import Standing
from agentbox.trace.merkle import MerkleTree
from agentbox.trace.prepared import prepared
from agentbox.trace.signature import Claim, sign
from agentbox.trace.storable import args_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Any

    from agentbox.trace.keys import SigningKey
    from agentbox.trace.ledger import Ledger
    from agentbox.trace.prepared import Prepared
    from agentbox.trace.record import Kind, Origin

CHECKPOINT_RECORDS = 256
CHECKPOINT_SECONDS = 1.0
_CHECKPOINT_MICROSECONDS = int(CHECKPOINT_SECONDS * 1e6)
MAX_TRACE_BYTES = 1 << 30
_FORCE_MICROSECONDS = 100_000
_BUFFER_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Run:
    """What the first record binds the trace to; `details` are further facts of it (argv, versions)."""

    id: str
    policy_sha256: str
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Head:
    """Number of records and the hash of the last one."""

    count: int
    sha: str


class TraceWriter:
    """Appends records to a new file. Not for use from several threads."""

    def __init__(
        self,
        path: str | Path,
        run: Run,
        key: SigningKey,
        ledger: Ledger,
        *,
        max_bytes: int = MAX_TRACE_BYTES,
        force_checkpoints: bool = True,
        force: Callable[[int], None] | None = None,
        descriptor: int | None = None,
        ledger_seconds: float = CHECKPOINT_SECONDS,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """Create `path`, which must not exist, and write the first record.

        `max_bytes` bounds the file. Without `force_checkpoints` only the seal waits for the disk: a crash of the
        machine may take more, and a writer among many does not stop the others. With `force` the seal does not wait
        either: it gets the file's descriptor, which is then its own, before the ledger is told (syncing.py).
        `descriptor` is the file where it was created before (files.py); it is this writer's from now on. The ledger is
        told at most every `ledger_seconds` how long the trace is. `clock` gives nanoseconds since 1970.
        Raises TraceError.
        """
        self.path = path
        self.run = run
        self.counts = dict.fromkeys(record.KINDS, 0)
        self._key = key
        self._ledger = ledger
        self._max_bytes = max_bytes
        self._force_checkpoints = force_checkpoints
        self._force_later = force
        self._note_microseconds = int(ledger_seconds * 1e6)
        self._clock = clock
        self._microseconds = 0
        self._head = record.GENESIS
        self._count = 0
        self._tree = MerkleTree()
        self._grow = self._tree.append
        self._waiting: list[str] = []
        self._waiting_characters = 0
        self._written_bytes = 0
        self._unsigned = 0
        self._signed_at = 0
        self._noted_at = 0
        self._forced_at = 0
        self._unforced = False
        self._failure: TraceError | None = None
        self._descriptor = create(path) if descriptor is None else descriptor
        try:
            self._look()
            start = {**run.details, "run": run.id, "policy_sha256": run.policy_sha256, "key": key.public.id}
            self._put(*record.spelled("meta", record.RUN_START, args_text(start)))
            self._signed_at = self._noted_at = self._microseconds
            self.flush()
            self._ledger.note(self._standing(sealed=False))
        except BaseException:
            self.close()
            raise

    @property
    def head(self) -> Head:
        """Where the chain is now, records that are not flushed included."""
        return Head(self._count, self._head)

    @property
    def failed(self) -> bool:
        """Whether a write failed, so that nothing more can be recorded."""
        return self._failure is not None

    @property
    def written_bytes(self) -> int:
        """How long the file is, what is not flushed left out."""
        return self._written_bytes

    @property
    def is_signed(self) -> bool:
        """Whether nothing was recorded since the last signature."""
        return not self._unsigned

    def append(
        self,
        kind: Kind,
        op: str,
        args: Any,
        *,
        result: Any = None,
        origin: Origin = "supervisor",
        pid: int | None = None,
        lane: str | None = None,
    ) -> int:
        """Add a record and return its index. Whatever `args` and `result` are, it is one line. Raises TraceError."""
        return self.add(prepared(kind, op, args, result=result, origin=origin, pid=pid, lane=lane))

    def add(self, ready: Prepared) -> int:
        """Add a record that was prepared; it may be added many times. Raises TraceError."""
        if self._written_bytes > self._max_bytes and not ready.is_end:
            raise TraceError(
                f"{self.path}: the trace is longer than {self._max_bytes} bytes", hint="the run records too much"
            )
        self._look()
        index = self._put(*ready.parts)
        self.counts[ready.kind] += 1
        if self._unsigned >= CHECKPOINT_RECORDS or self._microseconds - self._signed_at >= _CHECKPOINT_MICROSECONDS:
            self.checkpoint()
        return index

    def tick(self) -> None:
        """Flush, force to disk what waits for it, and sign when a second has passed; call it about twice a second.
        Raises TraceError."""
        if self._unforced:
            self._look()
            self._force()
        if self._unsigned and self._clock() // 1000 - self._signed_at >= _CHECKPOINT_MICROSECONDS:
            self.checkpoint()
        else:
            self.flush()

    def flush(self) -> None:
        """Hand all records to the kernel. Raises TraceError."""
        self._check()
        if not self._waiting:
            return
        data = "".join(self._waiting).encode()
        self._waiting.clear()
        self._waiting_characters = 0
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            self._cut_back()
            raise self._fail(f"cannot be written: {error.strerror}", "free disk space") from error
        self._written_bytes += len(data)

    def checkpoint(self) -> None:
        """Sign everything so far, and force it to disk if that was not done a moment ago. Raises TraceError."""
        if self._count >= CHECKPOINT_RECORDS:
            digests.use_the_fastest()
        self._sign(record.CHECKPOINT)
        if self._force_checkpoints:
            if self._microseconds - self._forced_at >= _FORCE_MICROSECONDS:
                self._force()
            else:
                self._unforced = True
                self._expect_own_size()
        if self._microseconds - self._noted_at >= self._note_microseconds:
            self._noted_at = self._microseconds
            self._note(sealed=False)

    def seal(self) -> Head:
        """Sign the end of the trace, force it to disk, tell the ledger, close the file. Raises TraceError."""
        self._sign(record.SEAL)
        if self._force_later is None:
            self._force()
        else:
            self._expect_own_size()
            descriptor, self._descriptor = self._descriptor, -1
            self._force_later(descriptor)
        self._note(sealed=True)
        head = self.head
        self.close()
        return head

    @property
    def waits_for_disk(self) -> bool:
        """Whether `seal` waits until the trace is on disk."""
        return self._force_later is None

    def close(self) -> None:
        """Close the file without an end; what was not flushed is lost."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        if self._failure is None:
            self._failure = TraceError(f"{self.path}: the trace is closed", hint="start a new one")

    def _put(self, start: str, middle: str, end: str) -> int:
        """Add the line of these parts (`record.spelled`)."""
        if self._failure is not None:
            raise self._failure
        index, head = self._count, self._head
        before = f"{start}{index}{middle}{head}{end}"
        after = f',"ts":{record.timestamp(self._microseconds)},"v":{record.VERSION}}}'
        digest = digests.sha256(f"{head}{before}{after}".encode())
        self._head = sha = digest.hexdigest()
        self._count = index + 1
        self._grow(digest.digest())
        line = f'{before},"sha":"{sha}"{after}\n'
        self._waiting.append(line)
        self._unsigned += 1
        self._waiting_characters += len(line)
        if self._waiting_characters >= _BUFFER_BYTES:
            self.flush()
        return index

    def _look(self) -> None:
        """Take the time from the clock; a clock that goes back stands still here."""
        now = self._clock() // 1000
        if now > self._microseconds:
            self._microseconds = now

    def _sign(self, op: str) -> None:
        self._check()
        self._look()
        claim = Claim(
            run=self.run.id,
            policy_sha256=self.run.policy_sha256,
            key=self._key.public.id,
            count=self._count,
            head=self._head,
            root=self._tree.root(),
        )
        fields = {
            "args": claim.args(),
            "i": self._count,
            "kind": "meta",
            "op": op,
            "origin": "supervisor",
            "prev": self._head,
            "ts": self._microseconds / 1e6,
            "v": record.VERSION,
        }
        self._put(*record.spelled("meta", op, dumps({**claim.args(), "sig": sign(fields, self._key)})))
        self._unsigned = 0
        self._signed_at = self._microseconds
        self.flush()

    def _force(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise self._fail(f"cannot be forced to disk: {error.strerror}", "check the disk") from error
        self._unforced = False
        self._forced_at = self._microseconds
        self._expect_own_size()

    def _expect_own_size(self) -> None:
        facts = os.fstat(self._descriptor)
        if facts.st_size != self._written_bytes:
            raise self._fail(
                f"something else changed it: {facts.st_size} bytes where {self._written_bytes} were written",
                "let no program write to the directory of its trace",
            )

    def _note(self, *, sealed: bool) -> None:
        try:
            self._ledger.note(self._standing(sealed=sealed), durable=sealed)
        except TraceError as error:
            self._failure = error
            raise

    def _standing(self, *, sealed: bool) -> Standing:
        return Standing(self.run.id, self._count, self._head, sealed)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, what: str, hint: str) -> TraceError:
        self._failure = TraceError(f"{self.path}: {what}", hint=hint)
        return self._failure

    def _cut_back(self) -> None:
        """Remove half a line, so that what is left is a trace without an end and not a torn one."""
        try:
            os.ftruncate(self._descriptor, self._written_bytes)
        except OSError:
            return
