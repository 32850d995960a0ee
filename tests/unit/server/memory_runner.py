# SPDX-License-Identifier: MIT
"""A runner without a box, for tests of the HTTP edge alone, and a server around it in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from agentbox.config import Settings
from agentbox.engine.admission import Admission, OnQueued
from agentbox.errors import NotFoundError, UnknownBackendError
from agentbox.isolation.interpreters import by_language
from agentbox.models import (
    CapturedStream,
    Enforcement,
    Limits,
    Outcome,
    RunRequest,
    RunResult,
    Timings,
    Usage,
)
from agentbox.policy.allowlist import effective_allowlist
from agentbox.server.access import KeyRing, load_keys
from agentbox.server.app import create_app
from agentbox.server.listening import serve_app
from agentbox.workspace.snapshots import SnapshotInfo

Sink = Callable[[str, bytes], Awaitable[None]]


class MemorySnapshots:
    """Snapshots that exist only as entries of `stored`: (owner, id)."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str], SnapshotInfo] = {}

    def list(self, owner: str) -> tuple[SnapshotInfo, ...]:
        return tuple(info for (name, _), info in self.stored.items() if name == owner)

    def get(self, owner: str, snapshot_id: str) -> SnapshotInfo:
        try:
            return self.stored[owner, snapshot_id]
        except KeyError:
            raise NotFoundError(f"Unknown snapshot: {snapshot_id}") from None

    def delete(self, owner: str, snapshot_id: str) -> None:
        self.get(owner, snapshot_id)
        del self.stored[owner, snapshot_id]


class MemoryTraces:
    """Traces that exist only as entries of `stored`: (owner, run id) to a file."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str], Path] = {}

    def read(self, owner: str, run_id: str) -> BinaryIO:
        try:
            return self.stored[owner, run_id].open("rb")
        except KeyError:
            raise NotFoundError(f"No trace of a run {run_id!r}") from None

    def public_pem(self) -> str:
        return "-----BEGIN PUBLIC KEY-----\n"


@dataclass
class MemoryRunner:
    """Executes Python as a plain child process; `requests` and `ended` say what reached it and what came to an end."""

    settings: Settings
    backend_name: str = "memory"
    snapshots: MemorySnapshots = field(default_factory=MemorySnapshots)
    traces: MemoryTraces = field(default_factory=MemoryTraces)
    admission: Admission = field(default_factory=lambda: Admission(64, 2048))
    requests: list[RunRequest] = field(default_factory=list)
    ended: int = 0
    failure: Exception | None = None

    async def run(
        self, request: RunRequest, on_output: Sink | None = None, on_queued: OnQueued | None = None
    ) -> RunResult:
        self.requests.append(request)
        allowlist = effective_allowlist(request.egress_allowlist, self.settings.egress_allowlist)
        by_language(request.language)
        if request.backend not in {None, self.backend_name}:
            raise UnknownBackendError(f"backend {request.backend!r} is not offered here")
        if self.failure is not None:
            raise self.failure
        if request.snapshot_id:
            self.snapshots.get(request.owner, request.snapshot_id)
        directory = tempfile.TemporaryDirectory()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "import sys; exec(sys.stdin.read())",
            cwd=directory.name,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        timeout = request.limits.timeout_seconds or self.settings.default_timeout_seconds
        begun = time.monotonic()
        seen = {"stdout": b"", "stderr": b""}

        async def drain(name: str, pipe: asyncio.StreamReader) -> None:
            while chunk := await pipe.read(65536):
                seen[name] += chunk
                if on_output is not None:
                    await on_output(name, chunk)

        outcome = Outcome.EXITED
        try:
            async with asyncio.timeout(timeout):
                process.stdin.write(request.code.encode())
                process.stdin.close()
                await asyncio.gather(drain("stdout", process.stdout), drain("stderr", process.stderr))
                await process.wait()
        except TimeoutError:
            outcome = Outcome.TIMED_OUT
        finally:
            self.ended += 1
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            directory.cleanup()
        return self._result(request, outcome, process.returncode or 0, seen, begun, allowlist)

    def _result(
        self,
        request: RunRequest,
        outcome: Outcome,
        code: int,
        seen: dict[str, bytes],
        begun: float,
        allowlist: tuple[str, ...],
    ) -> RunResult:
        limits = Limits(request.limits.timeout_seconds or 30, request.limits.memory_mb or 1024, 1.0, 256, 256, 1 << 20)
        spent = time.monotonic() - begun
        return RunResult(
            run_id="0" * 32,
            outcome=outcome,
            exit_code=code if code >= 0 else 128 - code,
            signal=-code if code < 0 else None,
            stdout=CapturedStream(seen["stdout"], len(seen["stdout"])),
            stderr=CapturedStream(seen["stderr"], len(seen["stderr"])),
            duration_ms=int(spent * 1000),
            language=request.language,
            backend=self.backend_name,
            limits=limits,
            enforcement=Enforcement(),
            timings=Timings(0.0, 0.0, spent * 1000),
            usage=Usage(None, None, None),
            oom_killed=False,
            network_isolated=False,
            egress_allowlist=allowlist,
            files=dict(request.files) if request.return_files else {},
        )


@dataclass
class LiveServer:
    """A server in a thread; `stop()` ends it and waits."""

    host: str
    port: int
    runner: MemoryRunner
    loop: asyncio.AbstractEventLoop
    stop_event: asyncio.Event
    thread: threading.Thread

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.stop_event.set)
        self.thread.join(20)
        assert not self.thread.is_alive()


@contextlib.contextmanager
def live_server(settings: Settings | None = None, keys: KeyRing | None = None) -> Iterator[LiveServer]:
    """A server around a MemoryRunner on a free port of 127.0.0.1."""
    settings = settings or Settings(port=0)
    keys = load_keys(settings)[0] if keys is None else keys
    runner = MemoryRunner(settings)
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    ready = threading.Event()
    found: list[LiveServer] = []

    async def main() -> None:
        stop = asyncio.Event()

        def on_ready(host: str, port: int) -> None:
            found.append(LiveServer(host, port, runner, asyncio.get_running_loop(), stop, thread))
            ready.set()

        await serve_app(create_app(runner, settings, keys), settings, listener, stop, on_ready)

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    try:
        assert ready.wait(20), "the server did not start"
        yield found[0]
    finally:
        if found:
            found[0].stop()
