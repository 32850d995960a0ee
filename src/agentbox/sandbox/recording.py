# SPDX-License-Identifier: MIT
"""What is told of one sandbox in its trace, and what was refused in it.

The owner's side sees every command and every operation on files before the box does, so these records are the host's
own. Nothing here waits: a thread writes (trace/background.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentbox.engine import refused_sockets
from agentbox.engine.repeats import Repeats
from agentbox.engine.way_out import denial_of, record_of
from agentbox.errors import AgentboxError
from agentbox.models import Denial, Layer
from agentbox.policy.evaluation import decide
from agentbox.policy.questions import Exec
from agentbox.records import replace
from agentbox.sandbox.command_record import CommandRecord

if TYPE_CHECKING:
    from agentbox.egress.events import EgressEvent
    from agentbox.policy.decision import Decision
    from agentbox.policy.document import AnyPolicy
    from agentbox.trace.background import TraceLog
    from agentbox.trace.record import Kind, Origin
    from agentbox.trace.writer import Head

# Denials that a sandbox shows: the last of them.
MAX_SHOWN_DENIALS = 1000
NOT_RECORDED = -1
_NUMBERING_SECONDS = 1.0


class _Place:
    """The index of a record, once it is known."""

    __slots__ = ("index",)

    def __init__(self) -> None:
        self.index = NOT_RECORDED

    def known(self, index: int) -> None:
        self.index = index


class Recording:
    """Without a `log` nothing is recorded; denials are kept all the same. `policy` explains them."""

    def __init__(self, log: TraceLog | None = None, policy: AnyPolicy | None = None) -> None:
        self.log = log
        self.policy = policy
        self._numbers = itertools.count(1)
        self._denials: list[tuple[Denial, _Place]] = []
        self._last = _Place()
        self._repeats = Repeats(self._append)
        self._commands = 0

    @property
    def path(self) -> str | None:
        """The file."""
        return self.log.path if self.log is not None else None

    @property
    def denials(self) -> tuple[Denial, ...]:
        """What was refused, the last thousand, equal ones of a kind once; the gateway's as often as it tells them."""
        if self.log is not None and any(place.index < 0 for _, place in self._denials):
            # The newest are on their way to the thread that numbers them.
            with contextlib.suppress(TimeoutError, AgentboxError, OSError):
                self.log.settled().result(_NUMBERING_SECONDS)
        return tuple(replace(denial, trace_index=place.index) for denial, place in self._denials)

    # ---- what its owner does

    def note(
        self,
        op: str,
        args: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
        pid: int | None = None,
        origin: Origin = "supervisor",
    ) -> None:
        """Record something that the owner did or saw, or, with `guest`, what the agent in the box says. `args` are not
        changed any more; or they are called for later."""
        if self.log is not None:
            self.log.append("observe", op, args, pid=pid, origin=origin)

    def command(self, args: Callable[[], Mapping[str, Any]]) -> CommandRecord | None:
        """Record that a command is about to be started; what becomes of it is told to what this gives."""
        if self.log is None:
            return None
        number = next(self._numbers)
        self._commands = number
        self.note("command.start", lambda: {"command": number, **args()})
        return CommandRecord(self.note, number)

    def withheld(self, name: str, verdict: Decision) -> None:
        """Record that a variable was not passed on."""
        refused = {"target": name, "enforced": True, "reason": verdict.reason}
        if self._repeats.add("deny", "env", refused, "supervisor", None) is not None:
            rule = verdict.rule.text if verdict.rule else None
            self._refused(
                Denial(Layer.SUPERVISOR, "env", name, verdict.reason, 0, rule, None if rule else f"env: {name}")
            )

    # ---- what others see

    def gated(self, event: EgressEvent) -> None:
        """Record what the gateway decided or counted."""
        _, op, args = record_of(event)
        self._append("observe" if event.allowed else "deny", op, args, "gateway", None)
        if not event.allowed:
            self._refused(denial_of(event, 0))

    def seen(self, message: Mapping[str, Any]) -> None:
        """Record what the exec judge, or gVisor's kernel, reports."""
        if "lost" in message:
            self._append("observe", "witness.lost", message["lost"], "kernel", None)
        elif "socket" in message:
            report = message["socket"]
            if self._repeats.add(*refused_sockets.record_of(report), "kernel", report["pid"]) is not None:
                self._refused(refused_sockets.denial_of(report, 0))
        elif "spawn" in message:
            self._spawned(message["spawn"])

    def _spawned(self, report: Mapping[str, Any]) -> None:
        target = {"argv": report["argv"], "exe": report["exe"]}
        if report["allowed"]:
            if self.log is not None:
                args = {**target, "rule": report["reason"]}
                self.log.append(
                    "observe", "proc.exec", args, origin="kernel", pid=max(report["pid"], 0), may_be_lost=True
                )
            return
        refused = {**target, "target": report["exe"], "enforced": True, "reason": report["reason"]}
        if self._repeats.add("deny", "exec", refused, "kernel", report["pid"]) is not None:
            self._refused(self._spawn_denial(report))

    def _spawn_denial(self, report: Mapping[str, Any]) -> Denial:
        target = str(report["exe"])
        verdict = None
        if self.policy is not None and target:
            words = tuple(word if isinstance(word, str) else "?" for word in report["argv"]) or (target,)
            verdict = decide(self.policy, Exec(words, target))
        rule = verdict.rule.text if verdict and not verdict.allowed and verdict.rule else None
        quoted = shlex.quote(target)
        can_be_said = target and target.isprintable() and not any(sign in quoted for sign in ",#")
        missing = f"exec: {quoted}" if can_be_said and rule is None else None
        return Denial(Layer.KERNEL, "exec", target, str(report["reason"]), 0, rule, missing)

    # ---- its end

    async def settled(self) -> None:
        """Wait until everything so far is in the kernel's hands."""
        if self.log is not None:
            await asyncio.wrap_future(self.log.settled())

    async def seal(self) -> Head | None:
        """Write the end and seal. None where nothing could be recorded any more, or nothing was to be."""
        if self.log is None:
            return None
        self._repeats.flush()
        return await asyncio.wrap_future(self.log.seal(0, {"commands": self._commands}))

    def _append(
        self, kind: Kind, op: str, args: Mapping[str, Any], origin: Origin, pid: int | None, lane: str | None = None
    ) -> int | None:
        del lane
        place = self._last = _Place()
        if self.log is not None:
            # A process that the box's namespace does not show has no number.
            number = None if pid is None else max(pid, 0)
            self.log.append(kind, op, args, origin=origin, pid=number, on_index=place.known, may_be_lost=True)
        return 0

    def _refused(self, denial: Denial) -> None:
        self._denials.append((denial, self._last))
        del self._denials[:-MAX_SHOWN_DENIALS]
