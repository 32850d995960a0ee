# SPDX-License-Identifier: MIT
"""`agentbox run`: a command in a box that shows the project as far as the policy grants it, and its trace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import secrets
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import agentbox
from agentbox.config import Settings
from agentbox.engine.command_view import CommandView, look_at
from agentbox.engine.outside import Outside
from agentbox.engine.recorder import Recorder
from agentbox.engine.run_files import RunFiles
from agentbox.engine.supervisor import decode_status
from agentbox.engine.terminal import Terminal
from agentbox.errors import BackendUnavailableError, ConfinementError, TraceError, UnguardedError
from agentbox.guest.injection import GUARD_DIR, guard_directory, injection, policy_file, why_unguarded
from agentbox.isolation import host
from agentbox.isolation.backend import LiveBox, build_in_cgroup
from agentbox.isolation.backends.jail import JailBackend
from agentbox.isolation.facilities import Facilities
from agentbox.isolation.plan import AgentView, agent_plan, unisolated_plan
from agentbox.models import Confinement, Enforcement, Layer, Limits
from agentbox.policy.compilation import compile_policy
from agentbox.policy.evaluation import decide
from agentbox.policy.questions import Env
from agentbox.trace.keys import KeyStore
from agentbox.trace.ledger import Ledger
from agentbox.trace.writer import Run, TraceWriter

if TYPE_CHECKING:
    from agentbox.policy.document import AnyPolicy

CHANNEL = "/run/agentbox/channel"
POLICY = "/run/agentbox/policy"
_HOME = "/tmp/agentbox-home"  # noqa: S108 - inside the box
# Variables that every program gets when they are set here; all others need an `env:` rule.
_ALWAYS_PASSED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "COLORTERM", "TZ")
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
    """How it ended. `exit_code` is 128+n after signal n; `problem` says why a run was ended by the runner."""

    exit_code: int
    trace: Path
    counts: dict[str, int]
    run_id: str
    enforcement: Enforcement = field(default_factory=Enforcement)
    problem: str = ""
    warnings: list[str] = field(default_factory=list)


async def run_agent(request: AgentRequest, settings: Settings, files: Any) -> AgentOutcome:
    """Run the command to its end with this process's own stdin, stdout and stderr.

    `files` is the FileView that the policy is compiled with. Raises InvalidRequestError, BackendUnavailableError,
    ConfinementError, TraceError; nothing ran then.
    """
    view = look_at(request.argv, str(request.directory), request.environment.get("PATH", os.defpath))
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
    writer = TraceWriter(run_files.trace, run, keys.load_or_create(), Ledger(keys.directory / "ledger.jsonl"))
    run_files.link()
    facilities = await Facilities.open()
    session = _Session(request, view, confinement, facilities, writer, run_files, guard)
    try:
        return await session.run(run.id)
    finally:
        await facilities.close()
        run_files.close()


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
        confinement: Confinement,
        facilities: Facilities,
        writer: TraceWriter,
        run_files: RunFiles,
        guard: Path,
    ) -> None:
        self._guard = guard
        self._outside: Outside | None = None
        self._request = request
        self._view = view
        self._confinement = confinement
        self._facilities = facilities
        self._run_files = run_files
        self._writer = writer
        self._broken = asyncio.Event()
        self._recorder = Recorder(writer, lambda _: self._broken.set(), only_denials=request.witness == "off")
        self._outcome = AgentOutcome(1, run_files.trace, {}, "")

    async def run(self, run_id: str) -> AgentOutcome:
        """Build the box, run the command in it, seal the trace, leave nothing."""
        self._outcome.run_id = run_id
        made = self._make_missing_grants()
        box: LiveBox | None = None
        code = 1
        details: dict[str, Any] = {}
        try:
            box = await self._build()
            code = await self._execute(box)
        except ConfinementError as error:
            details = {"error": error.message}
            raise
        finally:
            if box is not None:
                details |= {"oom_killed": box.oom_killed()}
                await box.destroy()
            self._take_back(made)
            if self._outside is not None:
                self._outside.close()
            await self._recorder.finish(code, details)
            if self._recorder.failure is not None:
                self._outcome.problem = self._recorder.failure.message
        self._outcome.exit_code = code
        self._outcome.counts = self._recorder.counts
        return self._outcome

    async def _build(self) -> LiveBox:
        self._outcome.enforcement = self._claims()
        if self._request.isolation == "guard":
            self._outside = Outside()
            plan = unisolated_plan(
                self._confinement,
                workspace=str(self._request.directory),
                host_uid=os.geteuid(),
                host_gid=os.getegid(),
                memory_held_by_cgroup="memory" in self._facilities.held,
            )
            self._outside.write_policy(policy_file(self._request.policy))
            return await build_in_cgroup(self._facilities, plan, self._confinement, lambda: None)
        uid, gid = self._facilities.ids.take()
        plan = agent_plan(
            self._confinement,
            host.view(),
            AgentView(
                directory=str(self._request.directory),
                shown=(*((path, path) for path in self._view.shown), (str(self._guard), GUARD_DIR)),
                files=((POLICY, policy_file(self._request.policy)),),
                command=(self._view.real, self._view.arguments),
                channel=CHANNEL,
                home=_HOME,
                witness_all=self._request.witness == "all",
            ),
            host_uid=uid,
            host_gid=gid,
            memory_held_by_cgroup="memory" in self._facilities.held,
        )
        return await build_in_cgroup(
            self._facilities,
            plan,
            self._confinement,
            lambda: self._facilities.ids.give_back(uid),
            on_spawn=self._recorder.seen,
        )

    async def _execute(self, box: LiveBox) -> int:
        listener = self._outside.listener if self._outside else box.channel
        if listener is not None:
            self._recorder.listen(listener)
        argv = [self._view.path, *self._view.arguments]
        environment = self._environment()
        directory = str(self._request.directory)
        terminal = Terminal.of_this_process()
        watch = asyncio.create_task(box.watch_memory())
        try:
            if terminal is not None:
                key, exited, master = await box.start_on_terminal(argv, environment, directory, terminal.size())
                relaying = asyncio.create_task(terminal.relay(master))
            else:
                key, exited = await box.start_with_signals(argv, environment, directory, (0, 1, 2))
                relaying = None
            with self._signals_for(box, key):
                broken = asyncio.create_task(self._broken.wait())
                waiting: set[asyncio.Future[Any]] = {exited, broken}
                limit = self._confinement.limits.timeout_seconds
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
                terminal.restore()
        if ending is None or ending.status is None:
            return 128 + signal.SIGKILL
        code, _ = decode_status(ending.status)
        return code

    @contextlib.contextmanager
    def _signals_for(self, box: LiveBox, key: int) -> Any:
        """Signals that this process gets go to the command; a second one of the same kind ends it."""
        loop = asyncio.get_running_loop()
        seen: set[int] = set()

        def forward(number: int) -> None:
            if number in seen and number != signal.SIGWINCH:
                box.kill()
                return
            seen.add(number)
            forwarding = loop.create_task(box.signal(key, number))
            forwarding.add_done_callback(lambda done: done.exception())

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
        for number in numbers:
            loop.add_signal_handler(number, forward, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _claims(self) -> Enforcement:
        """Which layer holds what in this run. The jail itself was tried when its box was built; nothing is claimed for
        a run that only observes."""
        if self._request.observe:
            return Enforcement()
        if self._request.isolation == "guard":
            held = Layer.INTERPRETER
            return Enforcement(filesystem=held, network=held, exec=held)
        claims = JailBackend(self._facilities).claims()
        return replace(claims, exec=Layer.KERNEL)

    def _environment(self) -> dict[str, str]:
        given = self._request.environment
        policy = self._request.policy
        passed = {
            name: value for name, value in given.items() if name in _ALWAYS_PASSED or decide(policy, Env(name)).allowed
        }
        outside = self._outside
        base = {
            "PATH": os.defpath,
            "HOME": outside.home if outside else _HOME,
            "TMPDIR": outside.scratch if outside else "/tmp",  # noqa: S108 - the box's own
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            **passed,
        }
        return injection(
            self._view.kind,
            str(self._guard) if outside else GUARD_DIR,
            outside.channel if outside else CHANNEL,
            outside.policy if outside else POLICY,
            str(self._request.directory),
            "record",
            not self._request.observe,
            base,
            wall="none" if outside else "jail",
            private=(outside.scratch,) if outside else ("/tmp", "/dev/shm"),  # noqa: S108
            entry=self._view.script,
        )

    def _make_missing_grants(self) -> list[Path]:
        """A box can only write where something is: make what `write:` rules name and take it back when unused."""
        made = []
        files = list(self._confinement.files)
        for index, grant in enumerate(files):
            path = Path(grant.path)
            if grant.present or not grant.writable or not path.parent.is_dir():
                continue
            try:
                if path.suffix:
                    path.touch(exist_ok=False)
                else:
                    path.mkdir()
            except OSError as error:
                self._outcome.warnings.append(f"{path} cannot be made for `{grant.rule}`: {error.strerror}")
                continue
            made.append(path)
            files[index] = replace(grant, present=True)
        self._confinement = replace(self._confinement, files=tuple(files))
        return made

    @staticmethod
    def _take_back(made: Sequence[Path]) -> None:
        for path in reversed(made):
            with contextlib.suppress(OSError):
                if path.is_dir():
                    path.rmdir()
                elif path.stat().st_size == 0:
                    path.unlink()


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
