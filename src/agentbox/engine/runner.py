# SPDX-License-Identifier: MIT
"""run(request) -> RunResult: the one place that knows the order of the walk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from agentbox.config import Settings
from agentbox.engine.admission import Admission, OnQueued
from agentbox.engine.directories import Directories
from agentbox.engine.guarding import CHANNEL, GUARDED, POLICY, Guards, guarded_environment
from agentbox.engine.readings import MAX_CHARACTERS, Readings
from agentbox.engine.run_network import RunNetwork, decide_network
from agentbox.engine.run_policy import Ceiling as PolicyCeiling
from agentbox.engine.run_policy import RunPolicy, decide_policy
from agentbox.engine.run_trace import RunTraces
from agentbox.engine.supervisor import OutputSink
from agentbox.engine.threads import in_thread
from agentbox.engine.trace_store import TraceStore
from agentbox.engine.walk import Decided, Walk, base_environment
from agentbox.engine.way_out import STOCKED, Egress
from agentbox.errors import (
    AgentboxError,
    BackendUnavailableError,
    ConfigError,
    InvalidRequestError,
    PolicyError,
    RequestError,
    UnknownBackendError,
)
from agentbox.guest.injection import GUARD_DIR, policy_file
from agentbox.isolation import registry, selfcheck
from agentbox.isolation.backend import Backend, Program
from agentbox.isolation.backends.jail import JailBackend
from agentbox.isolation.facilities import DockerOptions, Facilities, GvisorOptions
from agentbox.isolation.interpreters import INTERPRETERS, Found, by_language, locate
from agentbox.isolation.plan import WORKSPACE
from agentbox.isolation.pool.nursery import GuardFiles
from agentbox.isolation.pool.shape import PoolShape
from agentbox.models import DEFAULT_OWNER, Confinement, Enforcement, Limits, RunRequest, RunResult
from agentbox.policy.ceiling import Ceiling, effective_limits
from agentbox.policy.document import policies_of
from agentbox.policy.parser import parse
from agentbox.records import replace
from agentbox.replay.report import Report
from agentbox.trace.keys import KeyStore
from agentbox.workspace.names import checked_path
from agentbox.workspace.snapshots import SnapshotStore
from agentbox.workspace.tree import Tree

__all__ = ["OutputSink", "Runner", "ceiling_of", "furnish"]

_T = TypeVar("_T")
_FILE_THREADS = 8
_EXPIRY_SECONDS = 60
# Rules of the usual kinds.
_SAMPLE = "read: .\nwrite: ./out\nenv: LANG\n"
_log = logging.getLogger("agentbox.engine")


def _of_sandboxes(settings: Settings) -> Callable[[str, str, Tree], tuple[str, ...]]:
    def restore(owner: str, snapshot_id: str, tree: Tree) -> tuple[str, ...]:
        from agentbox.workspace.volume_exchange import SandboxSnapshots
        from agentbox.workspace.volumes import open_volumes

        state = settings.resolved_state_dir()
        choice, size = settings.workspace_volumes, settings.workspace_volumes_mb << 20
        found = SandboxSnapshots(
            state, lambda: open_volumes(state, choice, size), max_bytes=settings.snapshot_max_bytes
        )
        return found.restore(owner, snapshot_id, tree)

    return restore


class Runner:
    """Executes requests until it is closed. Cancel the task that awaits `run` to end that run."""

    def __init__(self, settings: Settings, facilities: Facilities, snapshots: SnapshotStore) -> None:
        self.settings = settings
        self.snapshots = snapshots
        self.backend_name = registry.DEFAULT if settings.sandbox_backend == "auto" else settings.sandbox_backend
        self._facilities = facilities
        self._backends: dict[str, Backend] = {}
        self._enforcement: dict[str, Enforcement] = {}
        self._interpreters: dict[str, Found | None] = {}
        # Of backends whose boxes are made of images.
        self._inside: dict[str, Mapping[str, Found]] = {}
        self._directories = Directories(settings.resolved_state_dir())
        self._ceiling = ceiling_of(settings)
        self._policy_ceiling = PolicyCeiling(settings.policy_ceiling)
        self._traces: RunTraces | None = None
        self._egress = Egress(
            settings.dns_upstream, stocked=STOCKED if _may_open(settings) else 0, boxes=settings.max_concurrent_runs
        )
        self._readings = Readings()
        self._guards = Guards(settings.resolved_state_dir() / "guards")
        self.admission = Admission(
            settings.max_concurrent_runs,
            settings.max_queued_runs,
            per_key=settings.queue_runs_per_key,
            timeout_seconds=settings.queue_timeout_seconds,
        )
        self._threads = ThreadPoolExecutor(_FILE_THREADS, "agentbox-files")
        self._running: set[asyncio.Task[object]] = set()
        self._expiry: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, settings: Settings) -> Runner:
        """Open the backends, sweep what killed predecessors left behind, probe what is enforced here.

        Raises BackendUnavailableError, with what the host is missing, and ConfigError.
        """
        snapshots = SnapshotStore(
            settings.resolved_snapshot_dir(),
            max_bytes=settings.snapshot_max_bytes,
            quota_bytes=settings.snapshot_quota_bytes,
            ttl_seconds=settings.snapshot_ttl_seconds,
            elsewhere=_of_sandboxes(settings),
        )
        facilities = await Facilities.open()
        furnish(facilities, settings)
        runner = cls(settings, facilities, snapshots)
        try:
            await runner._open()
        except BaseException:
            await runner.close()
            raise
        return runner

    async def _open(self) -> None:
        settings = self.settings
        await asyncio.to_thread(self._directories.open)
        await asyncio.to_thread(self.snapshots.sweep)
        self._traces = await asyncio.to_thread(self._open_traces)
        for name, interpreter in INTERPRETERS.items():
            configured = getattr(settings, interpreter.setting)
            self._interpreters[name] = await asyncio.to_thread(locate, interpreter, configured)
        found = [interpreter for interpreter in self._interpreters.values() if interpreter is not None]
        await asyncio.to_thread(self._policy_ceiling.open, found)
        for name in dict.fromkeys((self.backend_name, *settings.allowed_backends)):
            backend = registry.make(name, self._facilities)
            if not backend.isolated and not settings.allow_unisolated:
                raise BackendUnavailableError(
                    f"backend {name} has no wall: whatever the code does, it does to this host",
                    hint="use backend jail, or accept that with --allow-unisolated / AGENTBOX_ALLOW_UNISOLATED=1",
                )
            if not backend.isolated and name == self.backend_name and self._policy_ceiling.present:
                raise ConfigError(
                    f"AGENTBOX_POLICY_CEILING cannot be held by backend {name}, which has no wall",
                    hint="use backend jail, or unset the ceiling",
                )
            inside = await backend.interpreters() if backend.isolated else None
            if inside is not None:
                self._inside[backend.name] = inside
                await asyncio.to_thread(self._policy_ceiling.open, inside.values())
            self._enforcement[backend.name] = await selfcheck.probe(backend, self._python(), self._probe_directory)
            self._backends[backend.name] = backend
        await self._open_pool()
        self._egress.fill()
        if settings.snapshot_ttl_seconds:
            self._expiry = asyncio.create_task(self._remove_expired_snapshots())

    async def _open_pool(self) -> None:
        """A pool that cannot be had makes runs slower, not weaker: the reason is logged, and runs start cold."""
        settings, backend = self.settings, self._backends.get("jail")
        if not settings.pool or not isinstance(backend, JailBackend):
            return
        shape = PoolShape(
            settings.pool_size,
            settings.pool_keys,
            settings.pool_modules,
            settings.pool_runs,
            settings.pool_seconds,
            settings.pool_node_size,
        )
        try:
            lacks = await backend.open_pool(shape, self._ordinary("python"), self._ordinary("javascript"))
        except AgentboxError as error:
            lacks = error.message
        if lacks:
            _log.warning("no warm pool, so runs start cold: %s", lacks)
        elif (ordinary := self._ordinary("python")) is not None:
            confinement, program = ordinary
            backend.offer_watched(shape, confinement, program, now=settings.trace_runs == "all")
            guarded = replace(program, env=_guarded(program), started_with=program.env)
            backend.offer_watched(
                shape, confinement, guarded, self._guard_files, now=settings.policy_ceiling is not None
            )
            if _may_open(settings):
                backend.offer_watched(shape, confinement, program, way_out=self._egress)
                backend.offer_watched(shape, confinement, guarded, self._guard_files, way_out=self._egress)

    async def _guard_files(self) -> GuardFiles:
        """The guard's directory for the Python of the boxes, and where they show it. Raises ConfinementError."""
        found = self._python()
        directory = await self._in_thread(self._guards.directory, found.path if found is not None else None)
        sample = policy_file(parse(_SAMPLE, root=WORKSPACE))
        variables = _guarded(Program(DEFAULT_OWNER, (), {}))
        return GuardFiles(str(directory), GUARD_DIR, CHANNEL, POLICY, sample, variables)

    def _ordinary(self, language: str) -> tuple[Confinement, Program] | None:
        """What a run in that language is under when its request says nothing; None without an interpreter."""
        found, interpreter, limits = self._interpreters[language], by_language(language), self._ceiling.default
        if found is None:
            return None
        argv = tuple(interpreter.argv(found.path, f"{WORKSPACE}/{interpreter.entry_file}", limits.memory_mb))
        return Confinement(limits, found.directories), Program(DEFAULT_OWNER, argv, base_environment(found))

    async def _remove_expired_snapshots(self) -> None:
        """At once, then regularly, until cancelled."""
        while True:
            try:
                await self._in_thread(self.snapshots.expire)
            except (AgentboxError, OSError) as error:
                _log.warning("expired snapshots cannot be removed: %s", error)
            await asyncio.sleep(min(self.settings.snapshot_ttl_seconds, _EXPIRY_SECONDS))

    def _open_traces(self) -> RunTraces:
        settings = self.settings
        keys = KeyStore(settings.trace_key_dir())
        store = TraceStore(
            settings.runs_trace_dir(), keep_runs=settings.trace_keep_runs, keep_bytes=settings.trace_keep_bytes
        )
        traces = RunTraces(store, keys.load_or_create(), keys.ledger_path, settings.trace_max_bytes)
        traces.open()
        return traces

    @property
    def traces(self) -> RunTraces:
        """The traces of runs, and the key that signs them."""
        assert self._traces is not None
        return self._traces

    def _python(self) -> Found | None:
        return self._interpreters["python"]

    @contextlib.asynccontextmanager
    async def _probe_directory(self) -> AsyncIterator[str]:
        box = await asyncio.to_thread(self._directories.make)
        try:
            yield str(box / "work")
        finally:
            await asyncio.to_thread(self._directories.remove, box)

    async def close(self) -> None:
        """End every run and remove everything but snapshots."""
        ending = [*self._running, *([self._expiry] if self._expiry else [])]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        # Boxes in stock may be given their ways out at this moment.
        for backend in self._backends.values():
            await backend.close()
        await self._egress.close()
        await self._facilities.close()
        await asyncio.to_thread(self._directories.close)
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)
        self._threads.shutdown(wait=False)

    async def run(
        self, request: RunRequest, on_output: OutputSink | None = None, on_queued: OnQueued | None = None
    ) -> RunResult:
        """Execute one request. `on_output(stream, chunk)` gets 'stdout' or 'stderr' as bytes arrive; `on_queued(runs)`
        how many runs are waiting, when this one has to wait too.

        Raises RequestError and PolicyError when nothing could run, OverloadedError when the queue is full,
        IsolationError when the box could not be built, WorkspaceError when files could not be placed or taken,
        TraceError when what must be recorded could not be: then the run did not begin, or was ended.
        """
        asked_at = time.monotonic()
        if request.policy is not None and len(request.policy) > MAX_CHARACTERS:
            # In a thread, since that takes longer.
            decided = await self._in_thread(self._decide, request)
        else:
            decided = self._decide(request)
        task: asyncio.Task[object] | None = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            async with self.admission.place(request.owner, on_queued) as place:
                walk = Walk(
                    decided,
                    self.settings,
                    self.snapshots,
                    self._directories,
                    self.traces,
                    self._guards,
                    self._egress,
                    self._threads,
                    asked_at,
                    place.waited_seconds,
                )
                return await walk.go(on_output)
        finally:
            self._running.discard(task)

    async def replay(self, owner: str, run_id: str) -> Report:
        """Run a recorded run of this caller again, answered from its trace, and say whether it did the same.

        Raises NotFoundError when there is none, TraceError when its trace was changed, and what `run` raises.
        """
        request, recording, blobs = await self._in_thread(self.traces.recorded, owner, run_id)
        decided = await self._in_thread(self._decide, request)
        from agentbox.engine.run_replay import RunReplay

        task: asyncio.Task[object] | None = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            async with self.admission.place(owner, None):
                replay = RunReplay(
                    decided,
                    recording,
                    blobs,
                    self._guards,
                    self.snapshots,
                    self._threads,
                    self.settings.max_total_output_bytes,
                )
                return await replay.go()
        finally:
            self._running.discard(task)

    def _decide(self, request: RunRequest) -> Decided:
        """Everything that can be refused before a box exists."""
        interpreter = by_language(request.language)
        name = request.backend or self.backend_name
        backend = self._backends.get(registry.DEFAULT if name == "auto" else name)
        if backend is None:
            raise UnknownBackendError(
                f"backend {name!r} is not offered here", hint=f"use one of {', '.join(self._backends)}"
            )
        inside = self._inside.get(backend.name)
        found = self._interpreters[interpreter.name] if inside is None else inside.get(interpreter.name)
        if found is None:
            program = interpreter.programs[-1]
            raise RequestError(
                f"Runtime not found: [Errno 2] No such file or directory: '{program}'",
                hint=f"install {program}, or set AGENTBOX_{interpreter.setting.upper()}"
                if inside is None
                else f"no image of backend {backend.name} has {program}: `agentbox image build` makes one that has",
            )
        limits, warnings = effective_limits(request.limits, self._ceiling)
        policy = self._policy(request, found, limits, backend)
        if request.record:
            _refuse_what_cannot_be_recorded(interpreter.name, backend, policy)
        if policy is not None:
            limits = policy.confinement.limits
            warnings = (*warnings, *policy.warnings)
        network = self._network(request, found, policy)
        for path in request.files:
            checked_path(path)
            if path == interpreter.entry_file:
                raise InvalidRequestError(
                    f"files: {path} is where the code itself goes", hint="give the file another name"
                )
        notes = [*warnings, *network.warnings] if backend.isolated else list(warnings)
        return Decided(
            request=request,
            backend=backend,
            enforcement=self._enforcement[backend.name],
            interpreter=interpreter,
            found=found,
            limits=limits,
            network=network,
            warnings=notes,
            policy=policy,
            traced=policy is not None
            or request.trace
            or request.record
            or self.settings.trace_runs == "all"
            # What the gateway decides is recorded.
            or (network.rules is not None and backend.isolated),
        )

    def _network(self, request: RunRequest, found: Found, policy: RunPolicy | None) -> RunNetwork:
        asked = None
        if policy is not None and request.policy is not None:
            asked = next(iter(policies_of(policy.policy)))
        return decide_network(request.egress_allowlist, asked, self._policy_ceiling.of(found), self.settings)

    def _policy(self, request: RunRequest, found: Found, limits: Limits, backend: Backend) -> RunPolicy | None:
        ceiling = self._policy_ceiling.of(found)
        # Without a guard no language has one.
        language = by_language(request.language).name if backend.guards else ""
        policy = decide_policy(
            request.policy, ceiling, language, found, limits, request.env, self._readings, request.owner
        )
        if policy is not None and (why := backend.refuses(policy.confinement)):
            raise PolicyError(why, hint="use backend jail, or no policy")
        return policy

    async def _in_thread(self, work: Callable[..., _T], *arguments: object) -> _T:
        return await in_thread(self._threads, work, *arguments)


def _refuse_what_cannot_be_recorded(language: str, backend: Backend, policy: RunPolicy | None) -> None:
    """Raise InvalidRequestError where nothing in the interpreter would tell what a run does."""
    if language not in GUARDED:
        raise InvalidRequestError(
            f"record: what {language} does cannot be recorded for a replay", hint='use python or javascript, or "trace"'
        )
    if policy is None:
        raise InvalidRequestError("record: needs a policy", hint='the widest is "policy": "read: .\\nwrite: ."')
    if not backend.judges or backend.own_kernel:
        raise InvalidRequestError(
            f"record: backend {backend.name} tells too little of what a run does", hint="use backend jail"
        )


def _guarded(program: Program) -> Mapping[str, str]:
    """The environment of a program whose interpreter loads a guard."""
    entry = f"{WORKSPACE}/{by_language('python').entry_file}"
    return guarded_environment(program.env, kind="python", root=WORKSPACE, entry=entry)


def _may_open(settings: Settings) -> bool:
    """Whether runs of this server may have a way out at all."""
    return bool(settings.egress_allowlist) or settings.allow_request_egress or settings.policy_ceiling is not None


def furnish(facilities: Facilities, settings: Settings) -> None:
    """Tell backends what the operator set for them."""
    facilities.docker = docker_options(settings)
    images = str(settings.resolved_state_dir() / "images")
    facilities.gvisor = GvisorOptions(settings.gvisor_pool_size, images, settings.gvisor_image)


def docker_options(settings: Settings) -> DockerOptions:
    """The engine and the images that the operator named."""
    return DockerOptions(
        settings.docker_host, settings.docker_image, settings.docker_node_image, settings.docker_runtime
    )


def ceiling_of(settings: Settings) -> Ceiling:
    """The operator's defaults and maxima; a default above its maximum is held to the maximum."""
    maximum = Limits(
        settings.max_timeout_seconds,
        settings.max_memory_mb,
        settings.max_cpus,
        settings.max_pids,
        settings.max_disk_mb,
        settings.max_output_bytes,
    )
    default = Limits(
        min(settings.default_timeout_seconds, maximum.timeout_seconds),
        min(settings.default_memory_mb, maximum.memory_mb),
        min(settings.default_cpus, maximum.cpus),
        min(settings.default_pids, maximum.pids),
        min(settings.default_disk_mb, maximum.disk_mb),
        maximum.max_output_bytes,
    )
    return Ceiling(default, maximum)
