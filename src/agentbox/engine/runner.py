# SPDX-License-Identifier: MIT
"""run(request) -> RunResult: the one place that knows the order of the walk."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from agentbox.config import Settings, process_environment
from agentbox.engine.admission import Admission
from agentbox.engine.directories import Directories
from agentbox.engine.supervisor import Ending, OutputSink, supervise
from agentbox.errors import (
    AgentboxError,
    BackendUnavailableError,
    InvalidRequestError,
    RequestError,
    UnknownBackendError,
)
from agentbox.isolation import registry, selfcheck
from agentbox.isolation.backend import Backend, LiveBox
from agentbox.isolation.facilities import Facilities
from agentbox.isolation.interpreters import INTERPRETERS, Found, Interpreter, by_language, locate
from agentbox.models import Confinement, Enforcement, Limits, Outcome, RunRequest, RunResult, Timings
from agentbox.policy.allowlist import effective_allowlist
from agentbox.policy.ceiling import Ceiling, effective_limits
from agentbox.workspace.collecting import collect_files
from agentbox.workspace.names import checked_path
from agentbox.workspace.placing import place_files
from agentbox.workspace.snapshots import SnapshotStore
from agentbox.workspace.tree import Tree

__all__ = ["OutputSink", "Runner", "ceiling_of"]

_T = TypeVar("_T")
_FILE_THREADS = 8
# Up to this many bytes a thread costs more than the writing.
_INLINE_BYTES = 1 << 16
_EXPIRY_SECONDS = 60
_NO_GATEWAY = "egress_allowlist is not enforced yet: the run had no network"
_log = logging.getLogger("agentbox.engine")


@dataclasses.dataclass(frozen=True, slots=True)
class _Decided:
    """A request with everything about it decided."""

    request: RunRequest
    backend: Backend
    interpreter: Interpreter
    found: Found
    limits: Limits
    allowlist: tuple[str, ...]
    warnings: list[str]


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
        self._directories = Directories(settings.resolved_state_dir())
        self._ceiling = ceiling_of(settings)
        self._admission = Admission(settings.max_concurrent_runs, settings.max_queued_runs)
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
        )
        facilities = await Facilities.open()
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
        for name, interpreter in INTERPRETERS.items():
            configured = getattr(settings, interpreter.setting)
            self._interpreters[name] = await asyncio.to_thread(locate, interpreter, configured)
        for name in dict.fromkeys((self.backend_name, *settings.allowed_backends)):
            backend = registry.make(name, self._facilities)
            if not backend.isolated and not settings.allow_unisolated:
                raise BackendUnavailableError(
                    f"backend {name} has no wall: whatever the code does, it does to this host",
                    hint="use backend jail, or accept that with --allow-unisolated / AGENTBOX_ALLOW_UNISOLATED=1",
                )
            self._enforcement[backend.name] = await selfcheck.probe(backend, self._python(), self._probe_directory)
            self._backends[backend.name] = backend
        if settings.snapshot_ttl_seconds:
            self._expiry = asyncio.create_task(self._remove_expired_snapshots())

    async def _remove_expired_snapshots(self) -> None:
        """At once, then regularly, until cancelled."""
        while True:
            try:
                await self._in_thread(self.snapshots.expire)
            except (AgentboxError, OSError) as error:
                _log.warning("expired snapshots cannot be removed: %s", error)
            await asyncio.sleep(min(self.settings.snapshot_ttl_seconds, _EXPIRY_SECONDS))

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
        await self._facilities.close()
        await asyncio.to_thread(self._directories.close)
        self._threads.shutdown(wait=False)

    async def run(self, request: RunRequest, on_output: OutputSink | None = None) -> RunResult:
        """Execute one request. `on_output(stream, chunk)` gets 'stdout' or 'stderr' as bytes arrive.

        Raises RequestError when nothing could run, OverloadedError when the queue is full, IsolationError when the
        box could not be built, WorkspaceError when files could not be placed or taken.
        """
        decided = self._decide(request)
        asked_at = time.monotonic()
        task: asyncio.Task[object] | None = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            async with self._admission.place():
                return await self._execute(decided, asked_at, on_output)
        finally:
            self._running.discard(task)

    def _decide(self, request: RunRequest) -> _Decided:
        """Everything that can be refused before a box exists."""
        interpreter = by_language(request.language)
        found = self._interpreters[interpreter.name]
        if found is None:
            program = interpreter.programs[-1]
            raise RequestError(
                f"Runtime not found: [Errno 2] No such file or directory: '{program}'",
                hint=f"install {program}, or set AGENTBOX_{interpreter.setting.upper()}",
            )
        name = request.backend or self.backend_name
        backend = self._backends.get(registry.DEFAULT if name == "auto" else name)
        if backend is None:
            raise UnknownBackendError(
                f"backend {name!r} is not offered here", hint=f"use one of {', '.join(self._backends)}"
            )
        limits, warnings = effective_limits(request.limits, self._ceiling)
        allowlist = effective_allowlist(request.egress_allowlist, self.settings.egress_allowlist)
        for path in request.files:
            checked_path(path)
            if path == interpreter.entry_file:
                raise InvalidRequestError(
                    f"files: {path} is where the code itself goes", hint="give the file another name"
                )
        notes = list(warnings)
        if allowlist and backend.isolated:
            notes.append(_NO_GATEWAY)
        return _Decided(request, backend, interpreter, found, limits, allowlist, notes)

    async def _execute(self, walk: _Decided, asked_at: float, on_output: OutputSink | None) -> RunResult:
        admitted_at = time.monotonic()
        directory: Path | None = None
        box: LiveBox | None = None
        try:
            if walk.backend.needs_directory:
                # Not in a thread: a cancelled wait would lose the path, and nobody would remove the directory.
                directory = self._directories.make()
            confinement = Confinement(walk.limits, walk.found.directories)
            box = await walk.backend.launch(confinement, str(directory / "work") if directory else None)
            tree = _tree(box, walk.backend)
            await self._prepare(walk, tree)
            ending = await supervise(
                box,
                self._argv(walk, box),
                self._environment(walk, directory),
                stdin=walk.request.stdin,
                limits=walk.limits,
                max_total_output_bytes=self.settings.max_total_output_bytes,
                on_output=on_output,
            )
            return await self._conclude(walk, box, tree, ending, asked_at, admitted_at)
        finally:
            await to_its_end(self._teardown(box, directory))

    async def _prepare(self, walk: _Decided, tree: Tree) -> None:
        request = walk.request
        code = request.code.encode("utf-8", "surrogateescape")
        files = {**request.files, walk.interpreter.entry_file: code}

        def place() -> None:
            if request.snapshot_id:
                walk.warnings.extend(self.snapshots.restore(request.owner, request.snapshot_id, tree))
            place_files(tree, files)

        if request.snapshot_id or sum(map(len, files.values())) > _INLINE_BYTES:
            await self._in_thread(place)
        else:
            place()

    def _argv(self, walk: _Decided, box: LiveBox) -> list[str]:
        script = f"{box.workspace_path}/{walk.interpreter.entry_file}"
        return [*walk.interpreter.argv(walk.found.path, script, walk.limits.memory_mb), *walk.request.args]

    def _environment(self, walk: _Decided, directory: Path | None) -> dict[str, str]:
        if walk.backend.name == "unrestricted":
            return {**process_environment(), **walk.request.env}
        scratch = "/tmp" if directory is None else str(directory / "tmp")  # noqa: S108
        return {
            "PATH": f"{os.path.dirname(walk.found.path)}:/usr/local/bin:/usr/bin:/bin",
            "HOME": scratch,
            "TMPDIR": scratch,
            "LANG": "C.UTF-8",
            # Output must not wait in a buffer that a timeout would throw away.
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **walk.request.env,
        }

    async def _conclude(
        self, walk: _Decided, box: LiveBox, tree: Tree, ending: Ending, asked_at: float, admitted_at: float
    ) -> RunResult:
        request = walk.request
        oom_killed, usage = box.oom_killed(), box.usage()
        snapshot_id = None
        files: dict[str, bytes] = {}
        if request.return_files:
            files, notes = await self._in_thread(
                lambda: collect_files(
                    tree,
                    request.return_files,
                    self.settings.max_return_file_bytes,
                    self.settings.max_return_total_bytes,
                )
            )
            walk.warnings.extend(notes)
        if request.snapshot and ending.outcome is not Outcome.TIMED_OUT:
            exclude = frozenset({walk.interpreter.entry_file})
            saved = await self._in_thread(lambda: self.snapshots.save(request.owner, tree, exclude=exclude))
            snapshot_id = saved.snapshot_id
            walk.warnings.extend(getattr(saved, "warnings", ()))
        return RunResult(
            run_id=secrets.token_hex(16),
            outcome=ending.outcome,
            exit_code=ending.exit_code,
            signal=ending.signal,
            stdout=ending.stdout,
            stderr=ending.stderr,
            duration_ms=round((ending.ended_at - ending.started_at) * 1000),
            language=request.language.lower(),
            backend=walk.backend.name,
            limits=walk.limits,
            enforcement=self._enforcement[walk.backend.name],
            timings=Timings(
                queued_ms=_ms(admitted_at - asked_at),
                start_ms=_ms(ending.started_at - admitted_at),
                run_ms=_ms(ending.ended_at - ending.started_at),
            ),
            usage=usage,
            oom_killed=oom_killed,
            network_isolated=walk.backend.isolated,
            egress_allowlist=walk.allowlist,
            snapshot_id=snapshot_id,
            files=files,
            warnings=tuple(walk.warnings),
        )

    async def _teardown(self, box: LiveBox | None, directory: Path | None) -> None:
        try:
            if box is not None:
                await box.destroy()
        finally:
            if directory is not None:
                await self._in_thread(self._directories.remove, directory)

    async def _in_thread(self, work: Callable[..., _T], *arguments: object) -> _T:
        return await in_thread(self._threads, work, *arguments)


def _tree(box: LiveBox, backend: Backend) -> Tree:
    if backend.needs_directory:
        return Tree(box.workspace_fd)
    return Tree(box.workspace_fd, *box.ids)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


async def in_thread(threads: ThreadPoolExecutor, work: Callable[..., _T], *arguments: object) -> _T:
    """The result of `work` in one of the threads. A cancelled caller waits for work that has begun.

    It must: the teardown closes the workspace's descriptor, the next box gets the same number, and a thread that went
    on would read and write another run's files.
    """
    submitted = threads.submit(work, *arguments)
    try:
        return await asyncio.wrap_future(submitted)
    except asyncio.CancelledError:
        if not submitted.cancel():
            await to_its_end(asyncio.wait({asyncio.wrap_future(submitted)}))
        raise


async def to_its_end(work: Awaitable[_T]) -> _T:
    """Await `work` until it has ended, even while this task is being cancelled; then raise the cancellation."""
    future = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # seen here, so that asyncio does not report it as forgotten
        raise cancelled
    return future.result()


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
