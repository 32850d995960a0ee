# SPDX-License-Identifier: MIT
"""One run, from a decided request to its result: the order of the walk, and its way back."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from agentbox.config import Settings, process_environment
from agentbox.engine.counting import Counting, Sizes
from agentbox.engine.directories import Directories
from agentbox.engine.guarding import CHANNEL, GUARDED, POLICY, Guards, guarded_environment, held_by_guard_alone
from agentbox.engine.run_network import RunNetwork
from agentbox.engine.run_policy import Prepared, RunPolicy, prepare, take_back
from agentbox.engine.run_recording import RunRecording
from agentbox.engine.run_trace import RunTrace, RunTraces
from agentbox.engine.supervisor import Ending, OutputSink, supervise
from agentbox.engine.threads import in_thread, to_its_end
from agentbox.engine.way_out import Egress, WayOut
from agentbox.errors import AgentboxError, QuotaExceededError, TraceError, WorkspaceError
from agentbox.guest.injection import GUARD_DIR, SOFT_INTERPRETERS, policy_file, soft_egress
from agentbox.isolation.backend import Backend, LiveBox, Program, Watch
from agentbox.isolation.interpreters import Found, Interpreter
from agentbox.isolation.plan import WORKSPACE, GuardView
from agentbox.models import (
    Confinement,
    Enforcement,
    Layer,
    Limits,
    Outcome,
    RunRequest,
    RunResult,
    Timings,
    TraceHead,
    Usage,
)
from agentbox.policy.document import policies_of
from agentbox.records import asdict, dataclass, replace
from agentbox.workspace.collecting import collect_files
from agentbox.workspace.placing import place_files
from agentbox.workspace.snapshots import SnapshotStore
from agentbox.workspace.tree import Tree

_T = TypeVar("_T")
# Up to this many bytes a thread costs more than the writing.
_INLINE_BYTES = 1 << 16
# So many files and rules are compiled where they are.
_INLINE_FILES = 64
_INLINE_RULES = 64


@dataclass(frozen=True, slots=True)
class Decided:
    """A request with everything about it decided. `enforcement` is what the backend was seen to hold here."""

    request: RunRequest
    backend: Backend
    enforcement: Enforcement
    interpreter: Interpreter
    found: Found
    limits: Limits
    network: RunNetwork
    warnings: list[str]
    policy: RunPolicy | None
    traced: bool

    @property
    def guarded(self) -> bool:
        """Whether the interpreter loads a guard: under a policy, where there is one for it. Without a policy nothing
        is put into a program; a trace then says what the kernel shows."""
        return self.policy is not None and self.interpreter.name in GUARDED and self.backend.guards


def base_environment(found: Found, scratch: str = "/tmp") -> dict[str, str]:  # noqa: S108
    """What every program's environment begins with. `scratch` is the directory for its own files."""
    return {
        "PATH": f"{os.path.dirname(found.path)}:/usr/local/bin:/usr/bin:/bin",
        "HOME": scratch,
        "TMPDIR": scratch,
        "LANG": "C.UTF-8",
        # Output must not wait in a buffer that a timeout would throw away.
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


class Walk:
    """One run. `asked_at` is the monotonic time at which it was asked for; then it waited for a place, and has one."""

    def __init__(
        self,
        decided: Decided,
        settings: Settings,
        snapshots: SnapshotStore,
        directories: Directories,
        traces: RunTraces,
        guards: Guards,
        egress: Egress,
        threads: ThreadPoolExecutor,
        asked_at: float,
        waited_seconds: float,
    ) -> None:
        self._decided = decided
        self._settings = settings
        self._snapshots = snapshots
        self._directories = directories
        self._traces = traces
        self._guards = guards
        self._egress = egress
        self._threads = threads
        self._asked_at = asked_at
        self._waited_seconds = waited_seconds
        self._run_id = secrets.token_hex(16)
        self._directory: Path | None = None
        self._box: LiveBox | None = None
        self._program: Program | None = None
        self._way_out: WayOut | None = None
        self._trace: RunTrace | None = None
        self._recording = (
            RunRecording(traces.blobs(decided.request.owner, self._run_id)) if decided.request.record else None
        )
        self._made: tuple[tuple[str, ...], ...] = ()
        self._snapshot_id: str | None = None
        self._files: dict[str, bytes] = {}

    async def go(self, on_output: OutputSink | None) -> RunResult:
        """Run it to its end. See Runner.run."""
        details: dict[str, Any] = {}
        exit_code = 128 + signal.SIGKILL
        try:
            if self._decided.traced:
                self._trace = self._begin_trace()
            box = await self._build()
            ending = await self._supervise(box, on_output)
            details, exit_code = _facts(ending), ending.exit_code
            if self._recording is not None:
                details |= self._recording.streams(ending)
            try:
                await self._collect(box, ending)
            except (QuotaExceededError, WorkspaceError) as error:
                # The program did run: whoever is told that its files could not be kept gets the rest.
                error.data["result"] = self._result(ending, None, box.oom_killed(), box.usage())
                raise
            oom_killed, usage = box.oom_killed(), box.usage()
            details |= {"oom_killed": oom_killed, "snapshot_id": self._snapshot_id, "usage": asdict(usage)}
            return self._result(ending, await self._end_trace(exit_code, details), oom_killed, usage)
        except BaseException as error:
            details["error"] = error.code if isinstance(error, AgentboxError) else type(error).__name__
            raise
        finally:
            if not self._let_go():
                await to_its_end(self._teardown(exit_code, details))

    def _begin_trace(self) -> RunTrace:
        """The trace, with its first record. A thread would cost more than what is written. Raises TraceError."""
        decided = self._decided
        policy = decided.policy.policy if decided.policy else None
        writer = self._traces.begin(
            self._run_id, decided.request, policy, decided.limits, decided.backend.name, self._recording
        )
        return RunTrace(self._traces, writer, decided.request, policy, self._recording)

    async def _end_trace(self, exit_code: int, details: dict[str, Any]) -> TraceHead | None:
        """The end of a sealed trace; None for a run that has none. Raises TraceError."""
        if self._trace is None:
            return None
        if self._trace.waits_for_nothing:
            return self._trace.end_now(exit_code, details)
        return await to_its_end(self._trace.end(exit_code, details))

    def _seen(self, report: dict[str, Any]) -> None:
        """What the exec judge reports, which it does not before a program runs."""
        if self._trace is not None:
            self._trace.seen(report)

    async def _build(self) -> LiveBox:
        """The box, its workspace filled, ready for the program."""
        decided, policy = self._decided, self._decided.policy
        if decided.backend.needs_directory:
            # Not in a thread: a cancelled wait would lose the path, and nobody would remove the directory.
            self._directory = self._directories.make()
        if policy is not None:
            confinement = replace(policy.confinement, image=decided.found.image)
        else:
            confinement = Confinement(decided.limits, decided.found.directories, image=decided.found.image)
        watch = await self._watch() if decided.traced else None
        directory = str(self._directory / "work") if self._directory else None
        program = None
        if not decided.backend.needs_directory:
            program = Program(decided.request.owner, tuple(self._argv(WORKSPACE)), self._environment())
        self._program = program
        # An interpreter that waits already has read the clocks of now.
        waiting = None if self._recording is not None else program
        way_out = await self._open_way_out(confinement, watch, waiting)
        network = way_out.network if way_out else None
        self._box = box = await decided.backend.launch(confinement, directory, watch, network, waiting)
        if way_out is not None:
            await way_out.serve(box.unix_listeners)
        tree = self._tree(box)
        if not self._entrusted(box):
            await self._fill(tree)
        trace = self._trace
        if trace is not None:
            trace.on_failure = box.kill
        if policy is not None:
            await self._show(box, tree, policy, trace)
        return box

    async def _show(self, box: LiveBox, tree: Tree, policy: RunPolicy, trace: RunTrace | None) -> None:
        """Let the box show what the policy leaves of its workspace, and listen to its guards."""
        decided = self._decided
        entry, found, guarded = decided.interpreter.entry_file, decided.found, decided.guarded

        def work() -> Prepared:
            return prepare(policy, tree, entry, found, guarded=guarded)

        prepared = work() if self._is_small(policy) else await self._in_thread(work)
        self._made = prepared.made
        decided.warnings.extend(prepared.warnings)
        view = prepared.view
        if guarded:
            view = replace(view, files=((POLICY, policy.reading.guard_file(prepared.policy, policy_file)),))
        await box.show(view)
        if trace is None:
            return
        trace.policy = prepared.policy
        if box.channel is not None:
            touched = self._recording.touched(tree) if self._recording is not None else None
            if touched is not None:
                await self._in_thread(touched.begin)
            trace.listen(box.channel, Counting(prepared.policy, Sizes(tree, WORKSPACE)), touched)
        for name in decided.request.files:
            trace.withheld_file(f"{WORKSPACE}/{name}")

    def _is_small(self, policy: RunPolicy) -> bool:
        """Whether it takes less to compile the policy against the workspace than to have a thread do it."""
        request, rules = self._decided.request, sum(len(one.rules) for one in policies_of(policy.policy))
        return not request.snapshot_id and len(request.files) <= _INLINE_FILES and rules <= _INLINE_RULES

    async def _watch(self) -> Watch:
        guard = None
        if self._decided.guarded:
            found = self._decided.found
            # What is compiled for a Python of this host is not for an image's.
            python = found.path if self._decided.interpreter.name == "python" and not found.image else None
            directory = self._guards.known(python) or await self._in_thread(self._guards.directory, python)
            guard = GuardView(str(directory), GUARD_DIR, CHANNEL)
        return Watch(self._command(), self._seen, guard)

    def _command(self) -> tuple[str, tuple[str, ...]]:
        program, *words = self._argv(WORKSPACE)
        return program if self._decided.found.image else os.path.realpath(program), tuple(words)

    async def _open_way_out(
        self, confinement: Confinement, watch: Watch | None, program: Program | None
    ) -> WayOut | None:
        rules = self._decided.network.rules
        if rules is None or not self._decided.backend.isolated:
            return None
        trace = self._trace
        if trace is None:
            return None
        # Sockets in a file system are made when a box is built, so one that waits has none.
        held = await self._decided.backend.hold_network(confinement, watch, None if rules.unix_paths else program)
        self._way_out = await self._egress.open(rules, trace.gated, held=held)
        self._decided.warnings.extend(self._way_out.notes)
        return self._way_out

    def _entrusted(self, box: LiveBox) -> bool:
        """Whether the box places the code by itself; it can where there is nothing else to be placed."""
        request, program = self._decided.request, self._program
        if program is None or request.files or request.snapshot_id or self._decided.policy is not None:
            return False
        return box.entrust(program.argv, program.env, request.code.encode("utf-8", "surrogateescape"))

    async def _fill(self, tree: Tree) -> None:
        request = self._decided.request
        code = request.code.encode("utf-8", "surrogateescape")
        files = {**request.files, self._decided.interpreter.entry_file: code}

        def place() -> None:
            if request.snapshot_id:
                restored = self._snapshots.restore(request.owner, request.snapshot_id, tree)
                self._decided.warnings.extend(restored)
            place_files(tree, files)

        if request.snapshot_id or sum(map(len, files.values())) > _INLINE_BYTES:
            await self._in_thread(place)
        else:
            place()

    async def _supervise(self, box: LiveBox, on_output: OutputSink | None) -> Ending:
        decided, trace = self._decided, self._trace
        if trace is not None:
            for name in decided.policy.withheld if decided.policy else ():
                trace.withheld(name)
            trace.check()
        program = self._program
        ending = await supervise(
            box,
            program.argv if program else self._argv(box.workspace_path),
            program.env if program else self._environment(),
            stdin=decided.request.stdin,
            limits=decided.limits,
            max_total_output_bytes=self._settings.max_total_output_bytes,
            on_output=on_output,
        )
        if self._way_out is not None:
            await self._way_out.close()
        if trace is not None:
            await box.judged()
            trace.check()
        return ending

    def _argv(self, workspace: str) -> list[str]:
        decided = self._decided
        script = f"{workspace}/{decided.interpreter.entry_file}"
        return [
            *decided.interpreter.argv(decided.found.path, script, decided.limits.memory_mb),
            *decided.request.args,
        ]

    def _environment(self) -> dict[str, str]:
        decided = self._decided
        asked = decided.policy.passed if decided.policy else decided.request.env
        if decided.backend.name == "unrestricted":
            return {**process_environment(), **asked}
        if decided.backend.name == "subprocess":
            asked = soft_egress(decided.network.allowlist, asked)
        outside = None if decided.backend.isolated else self._directory
        scratch = "/tmp" if outside is None else str(outside / "tmp")  # noqa: S108
        base = {**base_environment(decided.found, scratch), **asked}
        if not decided.guarded:
            return base
        kind, script = decided.interpreter.name, f"{WORKSPACE}/{decided.interpreter.entry_file}"
        seed = self._recording.seed if self._recording is not None else ""
        return guarded_environment(base, kind=kind, root=WORKSPACE, entry=script, seed=seed)

    async def _collect(self, box: LiveBox, ending: Ending) -> None:
        """Files to bring back, and the snapshot."""
        decided, settings = self._decided, self._settings
        request, tree = decided.request, self._tree(box)
        if request.return_files or request.snapshot:
            # Nobody may write what is being read.
            await box.taken_apart()
        # The code is the caller's own already.
        exclude = frozenset({decided.interpreter.entry_file})
        if request.return_files:
            self._files, notes = await self._in_thread(
                lambda: collect_files(
                    tree,
                    request.return_files,
                    settings.max_return_file_bytes,
                    settings.max_return_total_bytes,
                    exclude=exclude,
                )
            )
            decided.warnings.extend(notes)
        if request.snapshot and ending.outcome is not Outcome.TIMED_OUT:

            def save() -> Any:
                take_back(tree, self._made)
                return self._snapshots.save(request.owner, tree, exclude=exclude)

            saved = await self._in_thread(save)
            self._snapshot_id = saved.snapshot_id
            decided.warnings.extend(getattr(saved, "warnings", ()))

    def _result(self, ending: Ending, head: TraceHead | None, oom_killed: bool, usage: Usage) -> RunResult:
        decided, trace = self._decided, self._trace
        enforcement = decided.enforcement
        if decided.policy is not None:
            unjudged = Layer.INTERPRETER if decided.guarded else Layer.NONE
            # A box whose exec judge cannot be set up is not built.
            enforcement = replace(enforcement, exec=Layer.KERNEL if decided.backend.judges else unjudged)
            if held_by_guard_alone(decided.policy.confinement):
                enforcement = replace(enforcement, filesystem=Layer.INTERPRETER)
        if self._way_out is not None:
            enforcement = replace(enforcement, network=Layer.GATEWAY)
        if decided.backend.name == "subprocess" and decided.interpreter.name in SOFT_INTERPRETERS:
            enforcement = replace(enforcement, network=Layer.INTERPRETER)
        if trace is not None and trace.further_denials:
            decided.warnings.append(f"{trace.further_denials} further denials are in the trace alone")
        return RunResult(
            run_id=self._run_id,
            outcome=ending.outcome,
            exit_code=ending.exit_code,
            signal=ending.signal,
            stdout=ending.stdout,
            stderr=ending.stderr,
            duration_ms=_ms_between(ending),
            language=decided.request.language.lower(),
            backend=decided.backend.name,
            limits=decided.limits,
            enforcement=enforcement,
            timings=Timings(
                queued_ms=_ms(self._waited_seconds),
                start_ms=_ms(ending.started_at - self._asked_at - self._waited_seconds),
                run_ms=_ms(ending.ended_at - ending.started_at),
                start=self._box.start_kind if self._box is not None else "cold",
            ),
            usage=usage,
            oom_killed=oom_killed,
            network_isolated=decided.backend.isolated,
            egress_allowlist=decided.network.allowlist,
            snapshot_id=self._snapshot_id,
            files=self._files,
            warnings=tuple(decided.warnings),
            denials=tuple(trace.denials) if trace else (),
            trace=head,
            egress=self._way_out.traffic() if self._way_out else {},
        )

    def _let_go(self) -> bool:
        """Whether there is nothing to tear down but a box that needs no waiting for."""
        if self._way_out is not None or self._directory is not None:
            return False
        if self._trace is not None and not self._trace.ended:
            return False
        return self._box is None or self._box.let_go()

    async def _teardown(self, exit_code: int, details: dict[str, Any]) -> None:
        try:
            # Before the box, whose listeners it serves.
            if self._way_out is not None:
                await self._way_out.close()
        finally:
            try:
                if self._box is not None:
                    await self._box.destroy()
                if self._trace is not None:
                    # A run that was ended has a sealed trace too; whatever made that impossible is being raised.
                    with contextlib.suppress(TraceError):
                        await self._trace.end(exit_code, details)
            finally:
                if self._directory is not None:
                    await self._in_thread(self._directories.remove, self._directory)

    def _tree(self, box: LiveBox) -> Tree:
        return Tree(box.workspace_fd, *box.ids) if self._decided.backend.isolated else Tree(box.workspace_fd)

    async def _in_thread(self, work: Callable[..., _T], *arguments: object) -> _T:
        return await in_thread(self._threads, work, *arguments)


def _facts(ending: Ending) -> dict[str, Any]:
    """What the last record of a trace says about how the program ended."""
    return {
        "outcome": ending.outcome.value,
        "signal": ending.signal,
        "duration_ms": _ms_between(ending),
        "stdout_bytes": ending.stdout.total_bytes,
        "stderr_bytes": ending.stderr.total_bytes,
    }


def _ms_between(ending: Ending) -> int:
    return round((ending.ended_at - ending.started_at) * 1000)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
