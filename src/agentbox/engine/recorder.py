# SPDX-License-Identifier: MIT
"""The single writer of a run's trace: what guests claim, what the exec judge saw, what the runner did.

Denials that repeat are counted here and recorded in steps: see `repeats.py`.
"""

from __future__ import annotations

from agentbox.engine.guard_channel import GuardChannel
from agentbox.engine.repeats import Repeat, Repeats
from agentbox.errors import TraceError
from agentbox.light import asyncio
from agentbox.trace.prepared import prepared
from agentbox.trace.record import RUN_END

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from typing import Any

    from agentbox.egress.events import EgressEvent
    from agentbox.engine.counting import Counting
    from agentbox.engine.keeping import Keeping
    from agentbox.engine.processes import Processes
    from agentbox.engine.terminal import Terminal
    from agentbox.engine.touched import Touched
    from agentbox.light import socket
    from agentbox.trace import frames

    # Asked before something happens, by the guest that waits; gives the members of the answer besides `id`.
    Question = Callable[[frames.Request, int], Awaitable[dict[str, Any]]]
    from agentbox.trace.prepared import Prepared
    from agentbox.trace.writer import Head, TraceWriter

_TICK_SECONDS = 0.5
_MAX_TARGET = 4096
# Guards send the same frame when a program reads the same file again; so much of them is remembered.
_MAX_REPEATED = 512
_MAX_REPEATED_BYTES = 1024
MAIN = "main"
PROC_SPAWN = "proc.spawn"
PROC_RESULT = "proc.result"
_WITNESSED = {"open_read": "fs.open_read", "open_write": "fs.open_write", "connect": "net.connect"}


class Recorder:
    """Writes one trace. `on_failure` is called once when nothing more can be recorded: the run must end then.

    With `only_denials`, what the exec judge allowed is not recorded. `on_denial` gets operation, arguments and index of
    each denial that guards claim or that counting gave, of equal ones those of the first. `keeping` takes what is too
    large for a record, in a run that is recorded for a replay; `processes` tells the command's own process and its
    forks from other programs; `touched` keeps what the run changes. With `hash_bodies` no content of results is
    recorded. `questions` answer, by operation, effects that a
    guest asks about before they happen; all others may happen.
    """

    def __init__(
        self,
        writer: TraceWriter,
        on_failure: Callable[[TraceError], None],
        *,
        only_denials: bool = False,
        hash_bodies: bool = False,
        on_denial: Callable[[str, dict[str, Any], int], None] = lambda *_: None,
        keeping: Keeping | None = None,
        processes: Processes | None = None,
        touched: Touched | None = None,
        questions: Mapping[str, Question] | None = None,
    ) -> None:
        self._keeping = keeping
        self._processes = processes
        # Set before the guards are listened to, where it is not known before.
        self.touched = touched
        # Where the run has one; and how much it had shown when a program was started.
        self.terminal: Terminal | None = None
        self._shown: dict[Any, int] = {}
        self._questions = questions or {}
        self._only_denials = only_denials
        self._hash_bodies = hash_bodies
        self._writer = writer
        self._on_failure = on_failure
        self._counting: Counting | None = None
        self._enforced = True
        self._on_denial = on_denial
        # Asked before anything that waits for its answer; gives why it must not happen.
        self.before: Callable[[frames.Request], Awaitable[str]] | None = None
        self._repeated: dict[tuple[int, bytes], tuple[Prepared | Repeat, frames.Request]] = {}
        self._repeats = Repeats(self._append)
        self._gated_unrecorded = 0
        self._channel = GuardChannel(lambda pid, holder: _Conversation(self, pid, holder))
        self._ticking = asyncio.create_task(self._tick())
        self.failure: TraceError | None = None

    @property
    def counts(self) -> dict[str, int]:
        """What was recorded so far, by kind, each of those that one record stands for; denials of programs that ran on
        (observed only) count too."""
        told = self._repeats.unrecorded
        counts = {kind: count + told[kind] for kind, count in self._writer.counts.items()}
        counts["deny"] += self._gated_unrecorded
        return counts

    def listen(self, listener: socket.socket, counting: Counting | None = None, *, enforced: bool = True) -> None:
        """Serve the guards that connect to a box's channel. `counting` is asked about what the policy counts,
        and closed at the end; its refusals are `enforced`, or only written down."""
        self._counting = counting
        self._enforced = enforced
        self._channel.listen(listener)

    def seen(self, message: dict[str, Any]) -> int | None:
        """Record what the exec judge and the kernel witness report; the index of the record if it is a denial, and the
        first of its kind."""
        if self._processes is not None and "spawn" in message:
            self._processes.started(message["spawn"]["pid"])
        if "witness" in message:
            report = message["witness"]
            args = {name: value for name, value in report.items() if name not in ("pid", "op")}
            self._append("observe", _WITNESSED[report["op"]], args, "kernel", report["pid"])
            return None
        if "lost" in message:
            self._append("observe", "witness.lost", message["lost"], "kernel", None)
            return None
        if "socket" in message:
            from agentbox.engine.refused_sockets import record_of

            return self._repeats.add(*record_of(message["socket"]), "kernel", message["socket"]["pid"])
        return self._spawned(message["spawn"])

    def kernel_refused(self, op: str, args: dict[str, Any], pid: int) -> int | None:
        """Record what the kernel alone refused; the index of the record if it is the first of its kind."""
        return self._repeats.add("deny", op, args, "kernel", pid)

    def _spawned(self, report: dict[str, Any]) -> int | None:
        target = {"argv": report["argv"], "exe": report["exe"]}
        if report["allowed"]:
            if not self._only_denials:
                self._append("observe", "proc.exec", {**target, "rule": report["reason"]}, "kernel", report["pid"])
            return None
        denied = {**target, "target": report["exe"], "enforced": True, "reason": report["reason"]}
        return self._repeats.add("deny", "exec", denied, "kernel", report["pid"])

    def gated(self, event: EgressEvent) -> None:
        """Record what the gateway decided or counted."""
        from agentbox.engine.way_out import record_of

        kind, op, args = record_of(event)
        self._append(kind, op, args, "gateway", None)
        if kind == "deny":
            self._gated_unrecorded += event.count - 1

    def note(self, kind: Any, op: str, args: dict[str, Any], result: Any = None) -> None:
        """Record something that the runner itself did or saw."""
        self._append(kind, op, args, "supervisor", None, result=result)

    @property
    def waits_for_nothing(self) -> bool:
        """Whether nothing is left to be read or looked at, so that `finish_now` may be called in place of `finish`."""
        counting = self._counting
        return (
            self._channel.is_idle()
            and (counting is None or not counting.looks)
            and self.touched is None
            and not self._writer.waits_for_disk
        )

    def finish_now(
        self, returncode: int, details: dict[str, Any], sealed: Callable[[], None] = lambda: None
    ) -> Head | None:
        """See `finish`."""
        self._ticking.cancel()
        self._channel.stop()
        if self._counting is not None:
            self._counting.close_now()
        self._repeats.flush()
        try:
            return self._seal(returncode, details, sealed)
        except TraceError as error:
            self._failed(error)
            return None

    async def finish(
        self, returncode: int, details: dict[str, Any], sealed: Callable[[], None] = lambda: None
    ) -> Head | None:
        """Read what is still in the sockets, write the end, seal. None when the trace had failed before. `sealed` is
        called where it was sealed, or that was tried: in a thread, where that waits for the disk."""
        self._ticking.cancel()
        await self._channel.finish()
        if self._counting is not None:
            await self._counting.close()
        if self.touched is not None:
            await self.touched.finish(self._written)
            details["files"] = "all" if self.touched.complete else "some"
        self._repeats.flush()

        try:
            if self._writer.waits_for_disk:
                return await asyncio.to_thread(self._seal, returncode, details, sealed)
            return self._seal(returncode, details, sealed)
        except TraceError as error:
            self._failed(error)
            return None

    def _seal(self, returncode: int, details: dict[str, Any], sealed: Callable[[], None]) -> Head | None:
        try:
            if self._writer.failed:
                self._writer.close()
                return None
            # A trace that grew too long ended the run, but has room for its end.
            self._writer.append("meta", RUN_END, {"returncode": returncode, **details})
            return self._writer.seal()
        finally:
            sealed()

    def _written(self, path: str, before: Any, after: Any, asked: bool) -> None:
        args = {"path": path, "before": before, "after": after, **({} if asked else {"found": True})}
        self._append("observe", "fs.written", args, "supervisor", None)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            try:
                self._writer.tick()
            except TraceError as error:
                self._failed(error)
                return

    async def taken(self, bodies: Iterable[bytes], pid: int, holder: int, *, is_other: bool) -> bytes:
        """Record what a guard sent, in its order; the answers, when what they speak of is in the kernel's hands. Raises
        FrameError."""
        from agentbox.trace import frames

        answers = []
        for body in bodies:
            known = self._repeated.get((pid, body))
            if known is not None:
                self._add(*known, pid)
                continue
            request = frames.request_of(frames.message_of(body))
            if is_other:
                request.lane = f"!{request.lane or MAIN}"
            if _is_one_way(request):
                self._told(pid, body, request)
                continue
            answer = await self._taken(request, pid, holder)
            if request.ack:
                answers.append((request.id, answer))
        if not answers:
            return b""
        # Only what the kernel has may be called recorded.
        self._flush()
        kept = self.failure is None
        return b"".join(frames.answer(number, **(answer if kept else {"ok": False})) for number, answer in answers)

    def is_other_program(self, pid: int) -> bool:
        """Whether a process is none of the command's own."""
        return self._processes is not None and self._processes.is_other_program(pid)

    def refused(self, reason: str, pid: int) -> None:
        """Record that a process sent what is no frame."""
        self._repeats.add("observe", "frame.refused", {"reason": reason}, "supervisor", pid)

    def forget(self, holder: int) -> None:
        """A connection is closed: what was granted to it, and what it handed over for no record, is gone."""
        if self._counting is not None:
            self._counting.release(holder)
        if self._keeping is not None:
            self._keeping.forget(holder)

    def _told(self, pid: int, body: bytes, request: frames.Request) -> None:
        """Record what needs no answer and is not counted. The same frame may come again."""
        ready: Prepared | Repeat
        if request.kind == "deny":
            ready = self._repeats.kind_of("deny", request.op, request.args, "guest")
        else:
            ready = prepared(
                "observe",
                request.op,
                request.args,
                result=request.result,
                origin="guest",
                pid=max(pid, 0),
                lane=request.lane,
            )
        if len(body) <= _MAX_REPEATED_BYTES:
            if len(self._repeated) >= _MAX_REPEATED:
                self._repeated.clear()
            self._repeated[pid, body] = ready, request
        self._add(ready, request, pid)

    async def _taken(self, request: frames.Request, pid: int, holder: int) -> dict[str, Any]:
        """Record and count one request; the members of its answer besides `id`."""
        args = request.args
        counting = self._counting
        if request.kind == "count":
            if counting is None:
                return {"ok": False, "error": "nothing is counted in this run"}
            granted, why = await counting.grow(args.get("path"), args.get("identity"), args.get("size"), holder)
            return self._refused("write", request, pid, why) if why else {"ok": True, "result": {"size": granted}}
        if request.kind == "keep":
            if self._keeping is not None:
                self._keeping.piece(holder, args)
            return {"ok": True}
        if request.kind == "serve":
            return {"ok": False, "error": "nothing is served while a run is recorded"}
        if self.before is not None and request.ack and (why := await self.before(request)):
            return {"ok": False, "checkpoint": True, "error": why}
        if request.kind == "effect" and request.result is None and request.ack:
            question = self._questions.get(request.op)
            return await question(request, pid) if question is not None else {"ok": True}
        if counting is not None and args.get("once") is True and request.op == "fs.open_read":
            why = counting.read_once(args.get("identity"))
            if why:
                return self._refused("read", request, pid, why)
        if self._keeping is not None:
            request.args = self._keeping.resolved(holder, args)
            request.result = self._keeping.resolved(holder, request.result)
        if self._hash_bodies:
            from agentbox.engine.bodies import hashed

            request.result = hashed(request.result)
            if request.op == PROC_RESULT:
                request.args = hashed(request.args)
        elif self.terminal is not None and request.op == PROC_RESULT:
            request.args = self._with_terminal(request.args)
        if self.touched is not None:
            if request.op == PROC_RESULT:
                files = await self.touched.ended(args.get("spawn"))
                if files is not None:
                    request.args = {**request.args, "files": files}
            elif request.ack:
                await self.touched.ask(request)
        index = self._claimed(request, pid)
        if request.op != PROC_SPAWN or index is None:
            return {"ok": True}
        if self.touched is not None:
            await self.touched.starts(index)
        if self.terminal is not None:
            self._shown[index] = self.terminal.shown()
        return {"ok": True, "result": {"spawn": index}}

    def _with_terminal(self, args: dict[str, Any]) -> dict[str, Any]:
        """What a program gave, with what the run's terminal showed from its start on, where it has that terminal."""
        start = self._shown.pop(args.get("spawn"), None)
        stream = args.get("terminal")
        if start is None or self.terminal is None or self._keeping is None or stream not in (1, 2):
            return args
        end = self.terminal.shown()
        data = self.terminal.output.written.held()[start:end]
        if len(data) < end - start:
            return args
        return {**args, "terminal": {"stream": stream, "kept": self._keeping.keep(data), "bytes": len(data)}}

    def _refused(self, op: str, request: frames.Request, pid: int, why: str) -> dict[str, Any]:
        """Record a denial that only the host could give."""
        path = request.args.get("path")
        target = path[:_MAX_TARGET] if isinstance(path, str) else "?"
        denied = {"target": target, "enforced": self._enforced, "reason": why}
        self._denied(op, denied, "supervisor", pid, request.lane)
        return {"ok": False, "denied": True, "error": f"policy denies {op} {target}"}

    def _claimed(self, request: frames.Request, pid: int) -> int | None:
        """Record a claim; its index, None when it was not recorded by itself."""
        if request.kind == "deny":
            self._denied(request.op, request.args, "guest", pid, request.lane)
            return None
        return self._append(request.kind, request.op, request.args, "guest", pid, request.lane, request.result)

    def _denied(self, op: str, args: dict[str, Any], origin: Any, pid: int, lane: str | None) -> None:
        index = self._repeats.add("deny", op, args, origin, pid, lane)
        if index is not None:
            self._on_denial(op, args, index)

    def _append(
        self,
        kind: Any,
        op: str,
        args: dict[str, Any],
        origin: Any,
        pid: int | None,
        lane: str | None = None,
        result: Any = None,
    ) -> int | None:
        """Add a record; its index, None when it could not be added."""
        if self.failure is not None:
            return None
        # A process that the box's namespace does not show has no number.
        number = None if pid is None else max(pid, 0)
        try:
            return self._writer.append(kind, op, args, result=result, origin=origin, pid=number, lane=lane)
        except TraceError as error:
            self._failed(error)
            return None

    def _add(self, ready: Prepared | Repeat, request: frames.Request, pid: int) -> None:
        if self.failure is not None:
            return
        if isinstance(ready, Repeat):
            index = self._repeats.again(ready, request.args, pid, request.lane)
            if index is not None:
                self._on_denial(request.op, request.args, index)
            return
        try:
            self._writer.add(ready)
        except TraceError as error:
            self._failed(error)

    def _flush(self) -> None:
        try:
            self._writer.flush()
        except TraceError as error:
            self._failed(error)

    def _failed(self, error: TraceError) -> None:
        if self.failure is None:
            self.failure = error
            self._on_failure(error)


class _Conversation:
    """What one guard says while a run is recorded."""

    def __init__(self, recorder: Recorder, pid: int, holder: int) -> None:
        from agentbox.trace.frames import FrameError, FrameParser

        self._recorder = recorder
        self._pid = pid
        self._holder = holder
        self._is_other = recorder.is_other_program(pid)
        self._parser = FrameParser()
        self._error = FrameError

    async def take(self, data: bytes) -> bytes | None:
        """What came, recorded; the answers."""
        try:
            bodies = self._parser.bodies(data)
            return await self._recorder.taken(bodies, self._pid, self._holder, is_other=self._is_other)
        except self._error as error:
            self._recorder.refused(error.reason, self._pid)
            return None

    def over(self) -> None:
        """The connection is closed."""
        self._recorder.forget(self._holder)


def _is_one_way(request: frames.Request) -> bool:
    """Whether a claim needs no answer, is not counted, and cannot stand for larger bytes."""
    return (
        request.kind in ("observe", "deny")
        and not request.ack
        and request.args.get("once") is not True
        and request.op != PROC_RESULT
    )
