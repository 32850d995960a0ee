# SPDX-License-Identifier: MIT
"""The trace of one run behind /v1/run, from before its box exists until it is sealed, and the denials in it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shlex
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

import agentbox
from agentbox.engine.recorder import Recorder
from agentbox.engine.trace_store import TraceStore
from agentbox.errors import TraceError
from agentbox.models import Denial, Layer, Limits, RunRequest, TraceHead
from agentbox.policy.evaluation import decide
from agentbox.policy.questions import Env, Exec
from agentbox.trace.keys import SigningKey
from agentbox.trace.ledger import Ledger
from agentbox.trace.writer import Run, TraceWriter

if TYPE_CHECKING:
    from agentbox.policy.document import AnyPolicy

MAX_SHOWN_DENIALS = 100
# The ledger is written anew for as many removed traces at once.
FORGET_TOGETHER = 256
NO_POLICY_SHA256 = hashlib.sha256(b"").hexdigest()


class RunTraces:
    """What all traces of a server share: where they lie, the key that signs them, the ledger."""

    def __init__(self, store: TraceStore, key: SigningKey, ledger: Ledger, max_bytes: int) -> None:
        self._store = store
        self._key = key
        self._ledger = ledger
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._removed: set[str] = set()

    def open(self) -> None:
        """See what is there. Raises TraceError."""
        self._removed.update(self._store.open())

    def keep(self, owner: str, run_id: str) -> None:
        """Offer the trace of a run that has ended; the ledger forgets those that made room, many at once."""
        removed = self._store.keep(owner, run_id)
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

    def public_pem(self) -> str:
        """The public key that verifies them, as PEM text."""
        return self._key.public.pem()

    def begin(
        self, run_id: str, request: RunRequest, policy: AnyPolicy | None, limits: Limits, backend: str
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
            },
        )
        path = self._store.new(request.owner, run_id)
        return TraceWriter(path, run, self._key, self._ledger, max_bytes=self._max_bytes, force_checkpoints=False)


class RunTrace:
    """Records one run. `on_failure` is called once when nothing more can be recorded: the run must end then."""

    def __init__(self, traces: RunTraces, writer: TraceWriter, request: RunRequest, policy: AnyPolicy | None) -> None:
        self._traces = traces
        self._writer = writer
        self._request = request
        self._policy = policy
        self._recorder = Recorder(writer, self._failed)
        self._ended = False
        self.on_failure: Callable[[], None] = lambda: None
        self.denials: list[Denial] = []
        self.further_denials = 0

    def seen(self, message: dict[str, Any]) -> None:
        """Record what the exec judge reports."""
        index = self._writer.head.count
        self._recorder.seen(message)
        report = message.get("spawn")
        if report is not None and not report["allowed"]:
            self._add(self._spawn_denial(report, index))

    def withheld(self, name: str) -> None:
        """Record that a variable of the request was not passed on."""
        assert self._policy is not None
        verdict = decide(self._policy, Env(name))
        index = self._writer.head.count
        self._recorder.note("deny", "env", {"target": name, "enforced": True, "reason": verdict.reason})
        rule = verdict.rule.text if verdict.rule else None
        missing = None if rule else _rule("env", name)
        self._add(Denial(Layer.SUPERVISOR, "env", name, verdict.reason, index, rule, missing))

    def check(self) -> None:
        """Raise the TraceError that made recording impossible, if any."""
        if self._recorder.failure is not None:
            raise self._recorder.failure

    async def end(self, exit_code: int, details: Mapping[str, Any]) -> TraceHead:
        """Write the end and seal. Raises TraceError. May be called again: then nothing is done."""
        if self._ended:
            return TraceHead(self._writer.head.count, self._writer.head.sha)
        self._ended = True
        head = await self._recorder.finish(exit_code, dict(details))
        await asyncio.to_thread(self._traces.keep, self._request.owner, self._writer.run.id)
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

    def _spawn_denial(self, report: Mapping[str, Any], index: int) -> Denial:
        target = str(report["exe"])
        verdict = None
        if self._policy is not None and target:
            argv = tuple(report["argv"]) or (target,)
            verdict = decide(self._policy, Exec(argv, target))
        rule = verdict.rule.text if verdict and not verdict.allowed and verdict.rule else None
        missing = _rule("exec", shlex.quote(target)) if target and rule is None else None
        return Denial(Layer.KERNEL, "exec", target, str(report["reason"]), index, rule, missing)


def _rule(verb: str, value: str) -> str | None:
    """The rule with that value; None for a value that a policy's text cannot carry."""
    if not value.isprintable() or any(sign in value for sign in ",#"):
        return None
    return f"{verb}: {value}"
