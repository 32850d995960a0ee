# SPDX-License-Identifier: MIT
"""The trace of one run behind /v1/run, from before its box exists until it is sealed, and the denials in it."""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import agentbox
from agentbox.engine import refused_sockets
from agentbox.engine.keeping import blobs_of
from agentbox.engine.recorder import Recorder
from agentbox.engine.trace_store import TraceStore
from agentbox.engine.unhurried import Unhurried
from agentbox.engine.way_out import denial_of
from agentbox.errors import NotFoundError, TraceError
from agentbox.models import Denial, Layer, Limits, RunRequest, TraceHead
from agentbox.policy.evaluation import decide
from agentbox.policy.questions import Connect, Env, Exec, Read, Resolve, Unix, Write
from agentbox.replay.reading import replayable
from agentbox.trace.keys import SigningKey
from agentbox.trace.ledger import Ledger
from agentbox.trace.syncing import DiskSync
from agentbox.trace.verdict import Trust
from agentbox.trace.verify import verify
from agentbox.trace.writer import Run, TraceWriter

if TYPE_CHECKING:
    import socket

    from agentbox.egress.events import EgressEvent
    from agentbox.engine.counting import Counting
    from agentbox.engine.run_recording import RunRecording
    from agentbox.engine.touched import Touched
    from agentbox.policy.document import AnyPolicy
    from agentbox.policy.questions import Question
    from agentbox.replay.recording import Recording
    from agentbox.trace.writer import Head

MAX_SHOWN_DENIALS = 100
MAX_SHOWN_CHARACTERS = 4096
# The ledger is written anew for as many removed traces at once.
FORGET_TOGETHER = 256
NO_POLICY_SHA256 = hashlib.sha256(b"").hexdigest()


class RunTraces:
    """What all traces of a server share: where they lie, the key that signs them, the ledger."""

    def __init__(self, store: TraceStore, key: SigningKey, ledger: Path, max_bytes: int) -> None:
        self._sync = DiskSync()
        self._unhurried = Unhurried(self._sync.take)
        self._store = store
        self._key = key
        self._ledger = Ledger(ledger, force=self._unhurried.take)
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._removed: set[str] = set()

    def open(self) -> None:
        """See what is there. Raises TraceError."""
        self._removed.update(self._store.open())

    def close(self) -> None:
        """Wait until everything is on disk."""
        self._unhurried.close()
        self._sync.close()

    def keep(self, owner: str, run_id: str, size: int | None = None) -> None:
        """Offer the trace of a run that has ended; the ledger forgets those that made room, many at once. `size` is in
        bytes, of a trace with nothing beside it."""
        removed = self._store.keep(owner, run_id, size)
        with self._lock:
            self._removed.update(removed)
            forgotten = self._removed if len(self._removed) >= FORGET_TOGETHER else set()
            if forgotten:
                self._removed = set()
        if forgotten:
            with contextlib.suppress(TraceError):
                self._ledger.forget(forgotten)

    def read(self, owner: str, run_id: str) -> BinaryIO:
        """The trace of a run of this caller that has ended, opened. Raises NotFoundError."""
        return self._store.read(owner, run_id)

    def blobs(self, owner: str, run_id: str) -> str:
        """Where the bytes of a recorded run are kept. Raises TraceError."""
        return blobs_of(str(self._store.new(owner, run_id)), explicit=True)

    def keep_request(self, request: RunRequest, run_id: str) -> None:
        """Keep what a recorded run was asked to do. What cannot be written is found missing when it is replayed."""
        from agentbox.engine.run_recording import kept_request

        with contextlib.suppress(OSError):
            self._store.keep_beside(request.owner, run_id, kept_request(request))

    def recorded(self, owner: str, run_id: str) -> tuple[RunRequest, Recording, str]:
        """A run of this caller that was recorded for a replay: its request, what its trace tells, and where its bytes
        are. Raises NotFoundError, and TraceError for a trace that is not what was written."""
        from agentbox.engine.run_recording import request_again

        path = self._store.path(owner, run_id)
        kept = self._store.beside(owner, run_id)
        if kept is None:
            raise NotFoundError(
                f"run {run_id[:64]!r} was not recorded for a replay", hint='ask for it with `"record": true`'
            )
        verdict = verify(path, Trust((self._key.public,), self._ledger))
        if not verdict.ok:
            raise TraceError(
                f"the trace of run {run_id[:64]!r} is {verdict.status}: {verdict.detail}", hint="it is not replayed"
            )
        return request_again(kept, owner, run_id), replayable(path), blobs_of(str(path), explicit=True)

    def public_pem(self) -> str:
        """The public key that verifies them, as PEM text."""
        return self._key.public.pem()

    def begin(
        self,
        run_id: str,
        request: RunRequest,
        policy: AnyPolicy | None,
        limits: Limits,
        backend: str,
        recording: RunRecording | None = None,
    ) -> TraceWriter:
        """The writer of a new trace, its first record written. Raises TraceError."""
        code = request.code.encode("utf-8", "surrogateescape")
        run = Run(
            id=run_id,
            policy_sha256=policy.policy_sha256 if policy else NO_POLICY_SHA256,
            details={
                "agentbox": agentbox.__version__,
                "backend": backend,
                "checkpoint": False,
                "code_sha256": hashlib.sha256(code).hexdigest(),
                "language": request.language.lower(),
                "limits": {name: getattr(limits, name) for name in Limits.__dataclass_fields__},
                "policy": policy is not None,
                "snapshot_id": request.snapshot_id,
                **({} if recording is None else {"random_seed": recording.seed}),
            },
        )
        path = self._store.new(request.owner, run_id)
        return TraceWriter(
            path,
            run,
            self._key,
            self._ledger,
            max_bytes=self._max_bytes,
            force_checkpoints=False,
            force=self._unhurried.take,
        )


class RunTrace:
    """Records one run. `on_failure` is called once when nothing more can be recorded: the run must end then. `policy`
    is the run's, by which denials are explained; `recording` is there for a run that can be replayed."""

    def __init__(
        self,
        traces: RunTraces,
        writer: TraceWriter,
        request: RunRequest,
        policy: AnyPolicy | None,
        recording: RunRecording | None = None,
    ) -> None:
        self.recording = recording
        self._traces = traces
        self._writer = writer
        self._request = request
        self.policy = policy
        self._recorder = Recorder(
            writer,
            self._failed,
            on_denial=self._claimed,
            keeping=recording.keeping if recording else None,
            processes=recording.processes if recording else None,
        )
        self._ended = False
        self.on_failure: Callable[[], None] = lambda: None
        self.denials: list[Denial] = []
        self.further_denials = 0

    def seen(self, message: dict[str, Any]) -> None:
        """Record what the exec judge reports."""
        index = self._recorder.seen(message)
        if index is None:
            return
        if "spawn" in message:
            self._add(self._spawn_denial(message["spawn"], index))
        else:
            self._add(refused_sockets.denial_of(message["socket"], index))

    def listen(self, channel: socket.socket, counting: Counting, touched: Touched | None = None) -> None:
        """Serve the guards of the box. `counting` and `touched` are closed at the end."""
        self._recorder.touched = touched
        self._recorder.listen(channel, counting)

    def withheld_file(self, path: str) -> None:
        """Record that a file of the request is not shown to the program, where the policy says so of its path."""
        assert self.policy is not None
        verdict = decide(self.policy, Read(path))
        if verdict.allowed:
            return
        index = self._writer.head.count
        self._recorder.note("deny", "read", {"target": path, "enforced": True, "reason": verdict.reason})
        rule = verdict.rule.text if verdict.rule else None
        missing = None if rule else _rule("read", path)
        self._add(Denial(Layer.KERNEL, "read", path, verdict.reason, index, rule, missing))

    def gated(self, event: EgressEvent) -> None:
        """Record what the gateway decided or counted."""
        index = self._writer.head.count
        self._recorder.gated(event)
        if not event.allowed:
            self._add(denial_of(event, index))

    def withheld(self, name: str) -> None:
        """Record that a variable of the request was not passed on."""
        assert self.policy is not None
        verdict = decide(self.policy, Env(name))
        index = self._writer.head.count
        self._recorder.note("deny", "env", {"target": name, "enforced": True, "reason": verdict.reason})
        rule = verdict.rule.text if verdict.rule else None
        missing = None if rule else _rule("env", name)
        self._add(Denial(Layer.SUPERVISOR, "env", name, verdict.reason, index, rule, missing))

    def check(self) -> None:
        """Raise the TraceError that made recording impossible, if any."""
        if self._recorder.failure is not None:
            raise self._recorder.failure

    @property
    def ended(self) -> bool:
        """Whether its end was written, or that was tried."""
        return self._ended

    @property
    def waits_for_nothing(self) -> bool:
        """Whether `end_now` may be called in place of `end`."""
        return self._ended or (self.recording is None and self._recorder.waits_for_nothing)

    def end_now(self, exit_code: int, details: Mapping[str, Any]) -> TraceHead:
        """See `end`."""
        if self._ended:
            return self._head()
        self._ended = True
        return self._sealed(self._recorder.finish_now(exit_code, dict(details), self._keep))

    async def end(self, exit_code: int, details: Mapping[str, Any]) -> TraceHead:
        """Write the end and seal. Raises TraceError. May be called again: then nothing is done."""
        if self._ended:
            return self._head()
        self._ended = True
        if self.recording is not None:
            self._traces.keep_request(self._request, self._writer.run.id)
        return self._sealed(await self._recorder.finish(exit_code, dict(details), self._keep))

    def _head(self) -> TraceHead:
        return TraceHead(self._writer.head.count, self._writer.head.sha)

    def _keep(self) -> None:
        beside = self.recording is not None
        self._traces.keep(self._request.owner, self._writer.run.id, None if beside else self._writer.written_bytes)

    def _sealed(self, head: Head | None) -> TraceHead:
        if head is None:
            assert self._recorder.failure is not None
            raise self._recorder.failure
        return TraceHead(head.count, head.sha)

    def _failed(self, error: TraceError) -> None:
        del error
        self.on_failure()

    def _add(self, denial: Denial) -> None:
        if len(self.denials) < MAX_SHOWN_DENIALS:
            self.denials.append(denial)
        else:
            self.further_denials += 1

    def _claimed(self, effect: str, args: Mapping[str, Any], index: int) -> None:
        """A guard says that it refused something, or counting did."""
        if args.get("enforced") is not True:
            return
        target = args.get("target")
        shown = target[:MAX_SHOWN_CHARACTERS] if isinstance(target, str) else ""
        reason, rule, missing = args.get("reason"), None, None
        question = _question(effect, shown, args)
        if question is not None and self.policy is not None:
            verdict = decide(self.policy, question)
            if isinstance(question, Exec):
                shown = question.program or shown
            rule = verdict.rule.text if verdict.rule is not None and not verdict.allowed else None
            value = shlex.quote(shown) if effect == "exec" else shown
            missing = _rule(effect, value) if not verdict.allowed and rule is None else None
            reason = reason or (verdict.reason if not verdict.allowed else None)
        said = reason[:MAX_SHOWN_CHARACTERS] if isinstance(reason, str) else "the guard refuses it"
        self._add(Denial(Layer.INTERPRETER, effect, shown, said, index, rule, missing))

    def _spawn_denial(self, report: Mapping[str, Any], index: int) -> Denial:
        target = str(report["exe"])
        verdict = None
        if self.policy is not None and target:
            argv = tuple(report["argv"]) or (target,)
            verdict = decide(self.policy, Exec(argv, target))
        rule = verdict.rule.text if verdict and not verdict.allowed and verdict.rule else None
        missing = _rule("exec", shlex.quote(target)) if target and rule is None else None
        return Denial(Layer.KERNEL, "exec", target, str(report["reason"]), index, rule, missing)


def _question(effect: str, target: str, args: Mapping[str, Any]) -> Question | None:
    """The question to the policy behind a guard's denial, as far as its record tells."""
    if effect == "net" and target.startswith("unix:"):
        return Unix(target.removeprefix("unix:"))
    if effect == "net":
        host, colon, port = target.rpartition(":")
        has_port = colon and port.isdecimal() and (":" not in host or host.startswith("["))
        return Connect(host, int(port)) if has_port else Resolve(target)
    if effect == "read":
        return Read(target)
    if effect == "write":
        return Write(target)
    argv, program = args.get("argv"), args.get("program")
    if effect != "exec" or not isinstance(argv, list) or not argv or not isinstance(program, str):
        return None
    return Exec(tuple(word if isinstance(word, str) else "?" for word in argv), program[:MAX_SHOWN_CHARACTERS])


def _rule(verb: str, value: str) -> str | None:
    """The rule with that value; None for a value that a policy's text cannot carry."""
    if not value.isprintable() or any(sign in value for sign in ",#"):
        return None
    return f"{verb}: {value}"
