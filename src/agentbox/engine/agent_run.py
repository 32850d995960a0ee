# SPDX-License-Identifier: MIT
"""`agentbox run`: a command in a box that shows the project as far as the policy grants it, and its trace."""

from __future__ import annotations

import errno
import gc
import os
import sys

import agentbox
from agentbox.config import usual_state_directory
from agentbox.engine.agent_box import AgentBox, beyond_disk_limit
from agentbox.engine.command_view import look_at
from agentbox.engine.guarding import held_by_guard_alone, notes_on_guard_alone
from agentbox.engine.host_sockets import sockets_below
from agentbox.engine.lent_files import lend
from agentbox.engine.recorder import Recorder
from agentbox.engine.run_files import RunFiles
from agentbox.engine.signals import Signals
from agentbox.engine.startup_files import StartupFiles, in_words
from agentbox.engine.terminal import Terminal
from agentbox.errors import (
    AgentboxError,
    ConfinementError,
    InvalidRequestError,
    TraceError,
    UnguardedError,
)
from agentbox.guest.injection import GUARD_DIR, known_guard_directory, why_unguarded
from agentbox.light import asyncio, contextlib, signal
from agentbox.linux.cgroups import CgroupTree
from agentbox.models import Enforcement, FileDenial, Layer
from agentbox.policy.compilation import compile_policy
from agentbox.policy.document import policies_of
from agentbox.policy.paths import is_below
from agentbox.policy.rule import PathTarget
from agentbox.records import dataclass, field, replace
from agentbox.trace.keys import KeyStore
from agentbox.trace.ledger import Ledger
from agentbox.trace.writer import Run, TraceWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Any

    from agentbox.config import Settings
    from agentbox.egress.events import OnEvent
    from agentbox.egress.rules import EgressRules
    from agentbox.engine.command_view import CommandView
    from agentbox.engine.counting import Counting
    from agentbox.engine.lent_files import Lent
    from agentbox.engine.way_out import WayOut
    from agentbox.isolation.backend import LiveBox
    from agentbox.isolation.boxes import CommandExit
    from agentbox.isolation.facilities import Facilities
    from agentbox.models import Confinement, FileGrant, HostTraffic, Limits
    from agentbox.policy.document import AnyPolicy
    from agentbox.trace.keys import SigningKey

    OpenWayOut = Callable[[OnEvent], Awaitable[WayOut]]


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """A command to run under a policy. `directory` is where relative paths start; `environment` the caller's own."""

    argv: tuple[str, ...]
    policy: AnyPolicy
    directory: str
    environment: Mapping[str, str]
    limits: Limits
    trace: str | None = None
    isolation: str = "jail"
    observe: bool = False
    witness: str = "exec"


@dataclass(slots=True)
class AgentOutcome:
    """How it ended. `exit_code` is 128+n after signal n; `problem` says why a run was ended by the runner. Where not
    all of it is `recorded`, the trace has no end. `startup_files` are what it wrote that runs later, outside: path and
    why."""

    exit_code: int
    trace: str
    counts: dict[str, int]
    run_id: str
    enforcement: Enforcement = field(default_factory=Enforcement)
    problem: str = ""
    recorded: bool = True
    warnings: list[str] = field(default_factory=list)
    egress: dict[str, HostTraffic] = field(default_factory=dict)
    startup_files: list[dict[str, str]] = field(default_factory=list)


async def run_agent(request: AgentRequest, settings: Settings, files: Any, facilities: Facilities) -> AgentOutcome:
    """Run the command to its end with this process's own stdin, stdout and stderr.

    `files` is the FileView that the policy is compiled with. The caller closes `facilities`. Raises
    InvalidRequestError, BackendUnavailableError, ConfinementError, TraceError; nothing ran then.
    """
    directory = request.directory
    search_path = request.environment.get("PATH", os.defpath)
    view = look_at(request.argv, directory, search_path)
    confinement = compile_policy(request.policy, request.limits, files)
    walled = request.isolation == "jail"
    rules = _egress_rules(request.policy) if walled else None
    if not walled and (why := why_unguarded(request.argv)):
        raise UnguardedError(f"failed to arm sandbox, refusing to run: {why}", hint="run it with --isolation jail")
    guard = known_guard_directory(
        f"{settings.state_directory()}/guards",
        view.path if view.kind == "python" else None,
        seen_as=GUARD_DIR if walled else None,
    )
    view = view.with_programs(confinement.programs, search_path)
    confinement = replace(confinement, files=(*confinement.files, *_links(request.policy, confinement)))
    run_files = RunFiles(request.directory, request.trace)
    run_files.open()
    keys = KeyStore(settings.trace_key_dir())
    run = Run(
        id=os.urandom(16).hex(),
        policy_sha256=request.policy.policy_sha256,
        details={
            "argv": list(request.argv),
            "agentbox": agentbox.__version__,
            "python": sys.version.split()[0],
            "checkpoint": False,
        },
    )
    key = keys.load_or_create()
    writer = TraceWriter(run_files.trace, run, key, Ledger(keys.ledger))
    run_files.link()
    run_files.join()
    lent = lend(confinement, trace=run_files.trace, private=_private(settings, directory))
    if walled:
        lent.warnings += beyond_disk_limit(request.policy, lent.confinement)
    open_way_out = _plan_way_out(rules, lent, request, settings.dns_upstream) if walled else None
    planned = AgentBox(lent.confinement, request.policy, view, directory, guard, walled=walled)
    return await _Session(request, view, lent, planned, facilities, writer, key, run_files, open_way_out).run(run.id)


def _plan_way_out(
    rules: EgressRules | None, lent: Lent, request: AgentRequest, dns_upstream: str | None
) -> OpenWayOut | None:
    """How to open the run's way out, None for none. What a policy lends shows no socket of the host; one that a rule
    names is the gateway's own at the same place."""
    shown = [grant.path for grant in lent.confinement.files if grant.present]
    sockets = sockets_below(shown, request.directory)
    named = [path for path in sockets if rules is not None and rules.unix(path, counted=False).allowed]
    hidden = [FileDenial(path, True, True, "a socket of the host") for path in sockets if path not in named]
    lent.confinement = replace(lent.confinement, file_denials=(*lent.confinement.file_denials, *hidden))
    if rules is None:
        return None
    from agentbox.engine.run_network import portless_loopback
    from agentbox.engine.way_out import Egress

    lent.warnings += portless_loopback(request.policy)
    return lambda on_event: Egress(dns_upstream).open(rules, on_event, named)


def _meanwhile(key: SigningKey) -> None:
    """What can wait until the command runs: loading what signing needs, and removing what dead runs left."""
    with contextlib.suppress(AgentboxError):
        key.prepare()
    CgroupTree.sweep()


def _private(settings: Settings, directory: str) -> list[str]:
    """Directories that no grant may show: the key that signs, and other runs' state where the project is not in it."""
    both = {settings.state_directory(), usual_state_directory()}
    states = [state for state in both if not is_below(directory, os.path.realpath(state))]
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


def _egress_rules(policy: AnyPolicy) -> EgressRules | None:
    """The rules of the run's gateway; None where the policy opens nothing, and a box needs none."""
    if not any(rule.verb == "net" and not rule.deny for one in policies_of(policy) for rule in one.rules):
        return None
    from agentbox.egress.rules import EgressRules

    return EgressRules.of(policy) or None


class _Session:
    def __init__(
        self,
        request: AgentRequest,
        view: CommandView,
        lent: Lent,
        planned: AgentBox,
        facilities: Facilities,
        writer: TraceWriter,
        key: SigningKey,
        run_files: RunFiles,
        open_way_out: OpenWayOut | None,
    ) -> None:
        self._open_way_out = open_way_out
        self._way_out: WayOut | None = None
        self._request = request
        self._view = view
        self._lent = lent
        self._planned = planned
        self._facilities = facilities
        self._run_files = run_files
        self._writer = writer
        self._key = key
        self._broken = asyncio.Event()
        self._recorder = Recorder(writer, lambda _: self._broken.set(), only_denials=request.witness == "off")
        self._outcome = AgentOutcome(1, run_files.trace, {}, "", warnings=lent.warnings)

    async def run(self, run_id: str) -> AgentOutcome:
        """Build the box, run the command in it, seal the trace, leave nothing."""
        self._outcome.run_id = run_id
        box: LiveBox | None = None
        code = 1
        details: dict[str, Any] = {}
        if self._planned.outside is None:
            self._outcome.warnings += notes_on_guard_alone(self._lent.confinement)
        writable = [grant.path for grant in self._lent.confinement.files if grant.writable and grant.present]
        self._startup_files = StartupFiles(writable, [f"{self._request.directory}/.agentbox"])
        try:
            self._outcome.enforcement = self._planned.enforcement(self._facilities, observe=self._request.observe)
            if self._open_way_out is not None:
                self._way_out = await self._open_way_out(self._recorder.gated)
                self._outcome.enforcement = replace(self._outcome.enforcement, network=Layer.GATEWAY)
            box = await self._planned.build(
                self._facilities,
                self._seen,
                witness_all=self._request.witness == "all",
                network=self._way_out.network if self._way_out else None,
            )
            if self._way_out is not None:
                await self._way_out.serve(box.unix_listeners)
            code = await self._execute(box)
        except (ConfinementError, InvalidRequestError) as error:
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
            if self._planned.outside is not None:
                self._planned.outside.close()
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

    def _seen(self, report: dict[str, Any]) -> None:
        """The exec judge or the kernel witness reports."""
        self._recorder.seen(report)

    def _look_for_startup_files(self) -> None:
        """Say what the run wrote that will run later, in the trace and in the summary."""
        found = self._startup_files.written()
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
        terminal = Terminal.of_this_process()
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
            if relaying is not None:
                await relaying
        finally:
            watch.cancel()
            if terminal is not None:
                terminal.close()
        if ending is None or ending.status is None:
            return 128 + signal.SIGKILL
        code = os.waitstatus_to_exitcode(ending.status)
        return code if code >= 0 else 128 - code

    async def _start(self, box: LiveBox, terminal: Terminal | None) -> tuple[int, asyncio.Future[CommandExit], int]:
        argv = [self._view.path, *self._view.arguments]
        environment = self._planned.environment(self._request.environment, observe=self._request.observe)
        directory = self._request.directory
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


__all__ = ["AgentOutcome", "AgentRequest", "TraceError", "run_agent"]
