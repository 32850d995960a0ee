# SPDX-License-Identifier: MIT
"""`agentbox run`: a command in a box that shows the project as far as the policy grants it, and its trace."""

from __future__ import annotations

import errno
import os
import platform
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import agentbox
from agentbox.config import Settings
from agentbox.engine.agent_box import AgentBox
from agentbox.engine.command_view import CommandView, look_at
from agentbox.engine.lent_files import Lent, lend
from agentbox.engine.recorder import Recorder
from agentbox.engine.run_files import RunFiles
from agentbox.engine.signals import Signals
from agentbox.engine.supervisor import decode_status
from agentbox.engine.terminal import Terminal
from agentbox.errors import (
    BackendUnavailableError,
    ConfinementError,
    InvalidRequestError,
    TraceError,
    UnguardedError,
)
from agentbox.guest.injection import GUARD_DIR, guard_directory, why_unguarded
from agentbox.isolation.backend import LiveBox
from agentbox.isolation.boxes import CommandExit
from agentbox.isolation.facilities import Facilities
from agentbox.light import asyncio, signal
from agentbox.models import Confinement, Enforcement, FileGrant, Layer, Limits
from agentbox.policy.compilation import compile_policy
from agentbox.policy.document import policies_of
from agentbox.policy.paths import is_below
from agentbox.policy.rule import PathTarget
from agentbox.records import dataclass, field, replace
from agentbox.trace.keys import KeyStore
from agentbox.trace.ledger import Ledger
from agentbox.trace.writer import Run, TraceWriter

if TYPE_CHECKING:
    from agentbox.policy.document import AnyPolicy

# An interactive agent may be left open for weeks.
_NO_TIMEOUT_SECONDS = 366 * 86400.0


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """A command to run under a policy. `directory` is where relative paths start; `environment` the caller's own."""

    argv: tuple[str, ...]
    policy: AnyPolicy
    directory: Path
    environment: Mapping[str, str]
    limits: Limits
    trace: Path | None = None
    isolation: str = "jail"
    observe: bool = False
    witness: str = "exec"


@dataclass(slots=True)
class AgentOutcome:
    """How it ended. `exit_code` is 128+n after signal n; `problem` says why a run was ended by the runner. Where not
    all of it is `recorded`, the trace has no end."""

    exit_code: int
    trace: Path
    counts: dict[str, int]
    run_id: str
    enforcement: Enforcement = field(default_factory=Enforcement)
    problem: str = ""
    recorded: bool = True
    warnings: list[str] = field(default_factory=list)


async def run_agent(request: AgentRequest, settings: Settings, files: Any) -> AgentOutcome:
    """Run the command to its end with this process's own stdin, stdout and stderr.

    `files` is the FileView that the policy is compiled with. Raises InvalidRequestError, BackendUnavailableError,
    ConfinementError, TraceError; nothing ran then.
    """
    directory = str(request.directory)
    search_path = request.environment.get("PATH", os.defpath)
    view = look_at(request.argv, directory, search_path)
    confinement = compile_policy(request.policy, request.limits, files)
    walled = request.isolation == "jail"
    if walled:
        _refuse_what_nothing_holds(confinement)
    elif why := why_unguarded(request.argv):
        raise UnguardedError(f"failed to arm sandbox, refusing to run: {why}", hint="run it with --isolation jail")
    guard = await asyncio.to_thread(
        guard_directory,
        settings.resolved_state_dir() / "guards",
        view.path if view.kind == "python" else None,
        seen_as=GUARD_DIR if walled else None,
    )
    view = view.with_programs(confinement.programs, search_path)
    confinement = replace(confinement, files=(*confinement.files, *_links(request.policy, confinement)))
    run_files = RunFiles(request.directory, request.trace)
    run_files.open()
    keys = KeyStore(settings.trace_key_dir())
    run = Run(
        id=secrets.token_hex(16),
        policy_sha256=request.policy.policy_sha256,
        details={
            "argv": list(request.argv),
            "agentbox": agentbox.__version__,
            "python": platform.python_version(),
            "checkpoint": False,
        },
    )
    key = keys.load_or_create()
    writer = TraceWriter(run_files.trace, run, key, Ledger(keys.directory / "ledger.jsonl"))
    run_files.link()
    run_files.join()
    lent = lend(confinement, trace=run_files.trace, private=_private(settings, directory))
    facilities = await Facilities.open()
    planned = AgentBox(lent.confinement, request.policy, view, directory, guard, walled=walled)
    # What signing needs is loaded while the command runs, not after it.
    preparing = asyncio.create_task(asyncio.to_thread(key.prepare))
    preparing.add_done_callback(lambda done: done.exception())
    session = _Session(request, view, lent, planned, facilities, writer, run_files)
    try:
        return await session.run(run.id)
    finally:
        await facilities.close()


def _private(settings: Settings, directory: str) -> list[Path]:
    """Directories that no grant may show: the key that signs, and other runs' state where the project is not in it."""
    usual = replace(settings, state_dir=None).resolved_state_dir()
    states = [
        state for state in {settings.resolved_state_dir(), usual} if not is_below(directory, os.path.realpath(state))
    ]
    return [settings.trace_key_dir(), *states]


def _links(policy: AnyPolicy, confinement: Confinement) -> list[FileGrant]:
    """Grants of links that a rule names: a program that uses the rule's own name must find something there."""
    known = {grant.path: grant for grant in confinement.files}
    found = []
    for rule in (rule for one in policies_of(policy) for rule in one.rules):
        target = rule.target
        if isinstance(target, PathTarget) and target.alias and not rule.deny and target.path in known:
            # The compiled grant is what every policy has in common.
            grant = known[target.path]
            if grant.present and grant.held_by is Layer.KERNEL and not target.pattern:
                found.append(replace(grant, path=target.alias))
    return found


def _refuse_what_nothing_holds(confinement: Confinement) -> None:
    hosts = [rule for rules in confinement.hosts for rule in rules if not rule.deny]
    if hosts:
        raise BackendUnavailableError(
            f"`{hosts[0].rule}` cannot be enforced: this version has no egress gateway, and a box has no network",
            hint="take the net: rules out of the policy; the command then runs without network",
        )


class _Session:
    def __init__(
        self,
        request: AgentRequest,
        view: CommandView,
        lent: Lent,
        planned: AgentBox,
        facilities: Facilities,
        writer: TraceWriter,
        run_files: RunFiles,
    ) -> None:
        self._request = request
        self._view = view
        self._lent = lent
        self._planned = planned
        self._facilities = facilities
        self._run_files = run_files
        self._writer = writer
        self._broken = asyncio.Event()
        self._recorder = Recorder(writer, lambda _: self._broken.set(), only_denials=request.witness == "off")
        self._outcome = AgentOutcome(1, run_files.trace, {}, "", warnings=lent.warnings)

    async def run(self, run_id: str) -> AgentOutcome:
        """Build the box, run the command in it, seal the trace, leave nothing."""
        self._outcome.run_id = run_id
        box: LiveBox | None = None
        code = 1
        details: dict[str, Any] = {}
        try:
            self._outcome.enforcement = self._planned.enforcement(self._facilities, observe=self._request.observe)
            box = await self._planned.build(
                self._facilities, self._recorder.seen, witness_all=self._request.witness == "all"
            )
            code = await self._execute(box)
        except (ConfinementError, InvalidRequestError) as error:
            details = {"error": error.message}
            raise
        finally:
            if box is not None:
                details |= {"oom_killed": box.oom_killed()}
                await box.destroy()
            with self._run_files.alone() as alone:
                if alone:
                    self._lent.take_back()
            if self._planned.outside is not None:
                self._planned.outside.close()
            await self._recorder.finish(code, details)
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

    async def _execute(self, box: LiveBox) -> int:
        listener = self._planned.outside.listener if self._planned.outside else box.channel
        if listener is not None:
            self._recorder.listen(listener)
        terminal = Terminal.of_this_process()
        watch = asyncio.create_task(box.watch_memory())
        relaying = None
        signals = Signals(box, terminal)
        try:
            with signals.passed_on():
                key, exited, master = await self._start(box, terminal)
                signals.started(key)
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
            if relaying is not None:
                await relaying
        finally:
            watch.cancel()
            if terminal is not None:
                terminal.close()
        if ending is None or ending.status is None:
            return 128 + signal.SIGKILL
        code, _ = decode_status(ending.status)
        return code

    async def _start(self, box: LiveBox, terminal: Terminal | None) -> tuple[int, asyncio.Future[CommandExit], int]:
        argv = [self._view.path, *self._view.arguments]
        environment = self._planned.environment(self._request.environment, observe=self._request.observe)
        directory = str(self._request.directory)
        try:
            if terminal is None:
                return *await box.start_with_signals(argv, environment, directory, (0, 1, 2)), -1
            return await box.start_on_terminal(argv, environment, directory, terminal.size(), terminal.instead)
        except OSError as error:
            hint = "check that this host can run it"
            if error.errno == errno.ENOEXEC:
                hint = "give the script a first line such as #!/bin/sh, or name its interpreter before it"
            raise InvalidRequestError(
                f"{self._request.argv[0]} cannot be executed: {os.strerror(error.errno or errno.EINVAL)}", hint=hint
            ) from error


def default_limits(settings: Settings) -> Limits:
    """An agent's run has the operator's ceilings: it is the user's own work, and the policy may lower them."""
    return Limits(
        timeout_seconds=_NO_TIMEOUT_SECONDS,
        memory_mb=settings.max_memory_mb,
        cpus=settings.max_cpus,
        pids=settings.max_pids,
        disk_mb=min(1024, settings.max_disk_mb),
        max_output_bytes=settings.max_output_bytes,
    )


__all__ = ["AgentOutcome", "AgentRequest", "TraceError", "default_limits", "run_agent"]
