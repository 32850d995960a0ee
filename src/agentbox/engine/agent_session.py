# SPDX-License-Identifier: MIT
"""The run of an `agentbox run` from its trace's first record to its seal. Loaded while the box is built."""

from __future__ import annotations

import errno
import gc
import os
import sys

import agentbox
from agentbox.engine.agent_run import AgentOutcome
from agentbox.engine.guarding import held_by_guard_alone, notes_on_guard_alone
from agentbox.engine.keeping import Keeping, blobs_of
from agentbox.engine.output import Stream, descriptors, streams_of_this_process
from agentbox.engine.processes import Processes
from agentbox.engine.recorder import Recorder
from agentbox.engine.signals import Signals
from agentbox.engine.starting_point import HASHED, LIVE, UNRECORDED, starting_point, why_unrecorded
from agentbox.engine.startup_files import StartupFiles, in_words
from agentbox.engine.terminal import Terminal
from agentbox.engine.touched import Touched
from agentbox.errors import AgentboxError, CheckpointError, ConfinementError, InvalidRequestError
from agentbox.light import asyncio, contextlib, signal
from agentbox.linux.cgroups import CgroupTree
from agentbox.models import Layer
from agentbox.records import replace
from agentbox.trace.ledger import Ledger
from agentbox.trace.writer import Run, TraceWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from agentbox.egress.events import OnEvent
    from agentbox.engine.agent_run import AgentRequest, Building
    from agentbox.engine.checkpointing import Checkpointing
    from agentbox.engine.command_view import CommandView
    from agentbox.engine.counting import Counting
    from agentbox.engine.lent_files import Lent
    from agentbox.engine.run_files import RunFiles
    from agentbox.engine.way_out import WayOut
    from agentbox.isolation.backend import LiveBox
    from agentbox.isolation.boxes import CommandExit
    from agentbox.trace.keys import KeyStore, SigningKey

    OpenWayOut = Callable[[OnEvent], Awaitable[WayOut]]


_UNREAD_SECONDS = 5


def _meanwhile(key: SigningKey) -> None:
    """What can wait until the command runs: loading what signing needs, and removing what dead runs left."""
    with contextlib.suppress(AgentboxError):
        key.prepare()
    CgroupTree.sweep()


class Session:
    """One run. Making it opens its trace. Raises TraceError."""

    def __init__(
        self,
        request: AgentRequest,
        view: CommandView,
        lent: Lent,
        building: Building,
        keys: KeyStore,
        key: SigningKey,
        run_files: RunFiles,
        open_way_out: OpenWayOut | None,
    ) -> None:
        self._open_way_out = open_way_out
        self._way_out: WayOut | None = None
        self._request = request
        self._view = view
        self._lent = lent
        self._building = building
        self._planned = building.planned
        self._facilities = building.facilities
        self._run_files = run_files
        self._key = key
        self._broken = asyncio.Event()
        self._streams: list[Stream] = []
        self._seed = os.urandom(32).hex()
        start = starting_point(request, view)
        self._clocks = str(start["clocks"])
        run = Run(
            id=os.urandom(16).hex(),
            policy_sha256=request.policy.policy_sha256,
            details={
                "argv": list(request.argv),
                "agentbox": agentbox.__version__,
                "python": sys.version.split()[0],
                "checkpoint": request.checkpoint,
                **({"bodies": HASHED} if request.hash_bodies else {"random_seed": self._seed}),
                **start,
            },
        )
        self._writer = TraceWriter(run_files.trace, run, key, Ledger(keys.ledger), descriptor=run_files.take())
        run_files.link()
        # Without a directory nothing is kept.
        blobs = "" if request.hash_bodies else blobs_of(run_files.trace, explicit=request.trace is not None)
        self._keeping = Keeping(blobs)
        self._processes = Processes()
        self._recorder = Recorder(
            self._writer,
            lambda _: self._broken.set(),
            only_denials=request.witness == "off",
            hash_bodies=request.hash_bodies,
            keeping=self._keeping,
            processes=self._processes,
            touched=self._new_touched(),
        )
        building.on_spawn = self._seen
        self._checkpointing: Checkpointing | None = self._new_checkpointing(run.id) if request.checkpoint else None
        self._box: LiveBox | None = None
        self._deciding: asyncio.Task[None] | None = None
        self._outcome = AgentOutcome(1, run_files.trace, {}, run.id, warnings=lent.warnings)

    def _new_touched(self) -> Touched:
        confinement = self._lent.confinement
        writable = [grant.path for grant in confinement.files if grant.writable and grant.present]
        own = [f"{self._request.directory}/.agentbox", os.path.realpath(self._run_files.trace)]
        denied = [denial.path for denial in confinement.file_denials if denial.present]
        return Touched(writable, [*own, *denied], self._keeping)

    def _new_checkpointing(self, run_id: str) -> Checkpointing:
        from agentbox.engine.checkpointing import Checkpointing

        lent, request = self._lent, self._request
        found = Checkpointing(
            request.directory,
            self._run_files.name,
            run_id,
            lent.confinement,
            made=lent.made,
            own=[os.path.realpath(self._run_files.trace)],
            environment=request.environment,
            on_taken=lambda args, result: self._recorder.note("effect", "hook.checkpoint", args, result),
        )
        self._recorder.before = found.before
        return found

    async def run(self) -> AgentOutcome:
        """Wait for the box, run the command in it, seal the trace, leave nothing."""
        box: LiveBox | None = None
        code = 1
        details: dict[str, Any] = {}
        if self._planned.outside is None:
            self._outcome.warnings += notes_on_guard_alone(self._lent.confinement)
        writable = [grant.path for grant in self._lent.confinement.files if grant.writable and grant.present]
        if self._clocks == UNRECORDED:
            why = why_unrecorded(self._request.argv, self._view)
            self._outcome.notes.append(f"clocks and randomness are not recorded: {why}")
        self._startup_files = StartupFiles(writable, [f"{self._request.directory}/.agentbox"])
        try:
            self._outcome.enforcement = self._planned.enforcement(self._facilities, observe=self._request.observe)
            if self._open_way_out is not None:
                self._way_out = await self._open_way_out(self._recorder.gated)
                self._outcome.enforcement = replace(self._outcome.enforcement, network=Layer.GATEWAY)
                self._outcome.notes += self._way_out.notes
            box = await self._building.box(self._way_out.network if self._way_out else None)
            if self._way_out is not None:
                await self._way_out.serve(box.unix_listeners)
            code = await self._execute(box)
        except (CheckpointError, ConfinementError, InvalidRequestError) as error:
            details = {"error": error.message}
            raise
        finally:
            if self._way_out is not None:
                await self._way_out.close()
                self._outcome.egress = self._way_out.traffic()
            removing: asyncio.Task[None] | None = None
            if box is not None:
                details |= {"oom_killed": box.oom_killed()}
                await box.gone()
                # Neither waits for the disk, as sealing does.
                removing = asyncio.create_task(box.destroy())
                self._facilities.launcher.let_go()
            with self._run_files.alone() as alone:
                if alone:
                    self._lent.take_back()
            if box is not None:
                self._look_for_startup_files()
            if self._checkpointing is not None:
                self._outcome.warnings += await self._checkpointing.note_changes()
                self._outcome.checkpoint = self._checkpointing.taken
            if self._planned.outside is not None:
                self._planned.outside.close()
            kept = None if self._request.hash_bodies else self._keeping
            details |= {stream.name: stream.record(kept) for stream in self._streams}
            await self._recorder.finish(code, details)
            if removing is not None:
                await removing
            self._outcome.warnings += self._run_files.close()
        if details["oom_killed"] and code == 128 + signal.SIGKILL:
            self._outcome.problem = (
                f"the command was ended: it used more than {self._lent.confinement.limits.memory_mb} MB"
            )
        if self._recorder.failure is not None:
            self._outcome.problem = f"the command was ended: {self._recorder.failure.message}"
            self._outcome.recorded = False
        self._outcome.exit_code = code
        self._outcome.counts = self._recorder.counts
        return self._outcome

    async def _take_before_start(self, checkpointing: Checkpointing) -> None:
        """Take the checkpoint where no kernel holds a program that asks nobody. Raises CheckpointError; nothing ran
        then."""
        if self._planned.outside is not None and self._view.kind in ("python", "node"):
            return
        why = await checkpointing.take("start", " ".join(self._request.argv))
        if why:
            raise CheckpointError(why, hint="nothing was started")

    def _seen(self, report: dict[str, Any]) -> None:
        """The exec judge or the kernel witness reports."""
        if "change" in report:
            self._deciding = asyncio.create_task(self._decide_on_changes(report["change"]))
            return
        witnessed = report.get("witness")
        if witnessed is not None and "error" in witnessed and not self._request.observe:
            from agentbox.engine import refused_files

            refused = refused_files.record_of(witnessed, self._request.policy)
            if refused is not None:
                self._recorder.kernel_refused(*refused, witnessed["pid"])
                return
        self._recorder.seen(report)

    async def _decide_on_changes(self, change: dict[str, Any]) -> None:
        """A program is about to change something for the first time, and waits."""
        assert self._checkpointing is not None
        assert self._box is not None
        why = await self._checkpointing.take(change["call"], change["path"])
        # The box may be gone by now.
        with contextlib.suppress(OSError):
            await self._box.decide_on_changes(allowed=not why)

    def _look_for_startup_files(self) -> None:
        """Say what the run wrote that will run later, in the trace and in the summary."""
        found = self._startup_files.written()
        if self._recorder.touched is not None and self._clocks != UNRECORDED:
            self._recorder.touched.changed(self._startup_files.changed)
        for one in found:
            self._recorder.note("observe", "fs.startup_file", {"path": one.path, "why": one.why})
            self._outcome.startup_files.append({"path": one.path, "why": one.why})
        directory = self._request.directory
        self._outcome.warnings += in_words(found, directory, complete=self._startup_files.complete)

    def _counting(self) -> Counting | None:
        """The counts of this run, where its policy counts anything."""
        if not held_by_guard_alone(self._lent.confinement):
            return None
        from agentbox.engine.counting import Counting, Sizes
        from agentbox.workspace.tree import Tree

        top = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return Counting(self._request.policy, Sizes(Tree(top)))
        finally:
            os.close(top)

    async def _execute(self, box: LiveBox) -> int:
        listener = self._planned.outside.listener if self._planned.outside else box.channel
        if listener is not None:
            self._recorder.listen(listener, self._counting(), enforced=not self._request.observe)
        self._box = box
        if self._checkpointing is not None and not self._planned.judged:
            await self._take_before_start(self._checkpointing)
        terminal = Terminal.of_this_process() if box.has_terminals else None
        watch = asyncio.create_task(box.watch_memory())
        relaying = None
        signals = Signals(box, terminal)
        try:
            with signals.passed_on():
                key, exited, master = await self._start(box, terminal)
                signals.started(key)
                gc.freeze()
                gc.enable()
                meanwhile = asyncio.create_task(asyncio.to_thread(_meanwhile, self._key))
                if terminal is not None:
                    relaying = asyncio.create_task(terminal.relay(master, signals.suspended_by_key))
                broken = asyncio.create_task(self._broken.wait())
                waiting: set[asyncio.Future[Any]] = {exited, broken}
                limit = self._lent.confinement.limits.timeout_seconds
                await asyncio.wait(waiting, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
                broken.cancel()
            ending = exited.result() if exited.done() else None
            if ending is None and not self._broken.is_set():
                self._outcome.problem = f"the command was ended after {limit:g} s"
            await box.kill_programs()
            await meanwhile
            if relaying is not None and terminal is not None:
                terminal.over()
                await relaying
            await self._pass_on_the_rest(in_time=ending is not None)
        finally:
            watch.cancel()
            if terminal is not None:
                terminal.close()
        if ending is None or ending.status is None:
            return 128 + signal.SIGKILL
        code = os.waitstatus_to_exitcode(ending.status)
        return code if code >= 0 else 128 - code

    async def _start(self, box: LiveBox, terminal: Terminal | None) -> tuple[int, asyncio.Future[CommandExit], int]:
        argv = [self._planned.program, *self._view.arguments]
        environment = self._planned.environment(
            self._request.environment,
            observe=self._request.observe,
            seed="" if self._clocks == UNRECORDED else self._seed,
        )
        if self._clocks == LIVE:
            environment["AGENTBOX_CLOCKS"] = LIVE
        directory = self._request.directory
        try:
            if terminal is None:
                self._streams = streams_of_this_process()
                for stream in self._streams:
                    stream.open()
                started = *await box.start_with_signals(argv, environment, directory, descriptors(self._streams)), -1
            else:
                self._streams = [terminal.output]
                self._recorder.terminal = terminal
                started = await box.start_on_terminal(argv, environment, directory, terminal.size(), terminal.instead)
            self._processes.started(box.pid_of(started[0]))
            return started
        except OSError as error:
            hint = "check that this host can run it"
            if error.errno == errno.ENOEXEC:
                hint = "give the script a first line such as #!/bin/sh, or name its interpreter before it"
            raise InvalidRequestError(
                f"{self._request.argv[0]} cannot be executed: {os.strerror(error.errno or errno.EINVAL)}", hint=hint
            ) from error
        finally:
            for stream in self._streams:
                stream.given()

    async def _pass_on_the_rest(self, *, in_time: bool) -> None:
        """What the command wrote last. Whoever reads it may take all the time, unless the run's own was over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if in_time else _UNREAD_SECONDS):
                for stream in self._streams:
                    await stream.finish()
