# SPDX-License-Identifier: MIT
"""The self-check that every backend must pass, and what a backend is worth on this host according to it.

A layer appears in a result's `enforcement` only when the backend claims it and every check of that resource was
refused in a real box on this host.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from agentbox.errors import BackendUnavailableError, ConfinementError
from agentbox.isolation.backend import Backend, LiveBox
from agentbox.isolation.host import explain_refusal
from agentbox.isolation.interpreters import INTERPRETERS, Found
from agentbox.isolation.network import Network
from agentbox.isolation.requirement import Requirement
from agentbox.models import Confinement, Enforcement, Layer, Limits
from agentbox.records import dataclass, fields, replace

# So much memory that as many interpreters as processes are allowed fit into it, in gVisor too.
_LIMITS = Limits(timeout_seconds=20, memory_mb=384, cpus=1.0, pids=24, disk_mb=8, max_output_bytes=1 << 16)
_TIGHT_MEMORY = replace(_LIMITS, memory_mb=32)
_TIGHT_CPU = replace(_LIMITS, cpus=0.1)
_GUEST_CHECKS = Path(__file__).parent.parent / "guest" / "checks.py"
_RUN_SECONDS = 30

# Touches 400 MB, page by page.
_EAT_MEMORY = "b=[]\nfor _ in range(100):\n x=bytearray(4<<20)\n for i in range(0,len(x),4096): x[i]=1\n b.append(x)\n"
# Half a second of wall time; prints the milliseconds of processor time it got, the interpreter's start not counted.
_EAT_CPU = (
    "import time\ns=time.process_time()\ne=time.monotonic()+0.5\nwhile time.monotonic()<e: pass\n"
    "print(int((time.process_time()-s)*1000))\n"
)
_CPU_MS_ALLOWED = 250
# A daemon that left its session, ignores TERM and keeps stdout open.
_DAEMON = (
    "import os,signal,time\n"
    "if os.fork()==0:\n os.setsid()\n signal.signal(signal.SIGTERM,signal.SIG_IGN)\n"
    " if os.fork()==0:\n  time.sleep(60)\n os._exit(0)\n"
    "print('parent done',flush=True)\n"
)

Directory = Callable[[], AbstractAsyncContextManager[str]]
Networks = Callable[[], AbstractAsyncContextManager[Network]]


@dataclass(frozen=True, slots=True)
class Check:
    """One attempt at something forbidden. `passed` means that the box held."""

    name: str
    resource: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """A backend on this host: requirements that were looked at, checks that ran, layers that are proven."""

    backend: str
    requirements: tuple[Requirement, ...]
    checks: tuple[Check, ...]
    enforcement: Enforcement

    @property
    def usable(self) -> bool:
        """Whether runs can be given to this backend: requirements met and no claimed wall found open."""
        return all(r.met for r in self.requirements) and not _open_walls(self)


def _open_walls(report: Report) -> list[Check]:
    return [c for c in report.checks if not c.passed and c.resource in ("filesystem", "network", "cleanup")]


async def examine(
    backend: Backend,
    python: Found | None,
    directory: Directory,
    *,
    thorough: bool = True,
    networks: Networks | None = None,
) -> Report:
    """Run the checks of the resources that the backend claims. `thorough` adds the slow one (cpu). With `networks`
    every box joins one of those, a new one each, and must hold as well as with a network of its own; nobody needs to
    serve it."""
    requirements = backend.requirements()
    if not all(requirement.met for requirement in requirements):
        return Report(backend.name, requirements, (), Enforcement())
    inside = await backend.interpreters()
    if inside is not None:
        python = inside.get("python")
        if python is None:
            need = Requirement("a Python in the image", False, "the image has none", "use an image with Python")
            return Report(backend.name, (*requirements, need), (), Enforcement())
    claims = backend.claims()
    claimed = {f.name for f in fields(claims) if getattr(claims, f.name) is not Layer.NONE}
    inspector = _Inspector(backend, python or INTERPRETERS["python"].find(sys.executable), directory, networks)
    try:
        checks = await inspector.inside(sorted(claimed & {"filesystem", "network", "disk", "pids"}))
        if "memory" in claimed:
            checks.append(await inspector.memory())
        if "cpu" in claimed and thorough:
            checks.append(await inspector.cpu())
        checks.append(await inspector.cleanup())
    except ConfinementError as error:
        return Report(backend.name, (*requirements, explain_refusal(error)), (), Enforcement())
    failed = {check.resource for check in checks if not check.passed}
    proven = {name: getattr(claims, name) if name not in failed else Layer.NONE for name in claimed}
    return Report(backend.name, requirements, tuple(checks), Enforcement(**proven))


async def probe(backend: Backend, python: Found | None, directory: Directory) -> Enforcement:
    """The layers that hold on this host. Raises BackendUnavailableError when the backend cannot be used here or a
    wall that it promises is open (fail closed)."""
    report = await examine(backend, python, directory, thorough=False)
    for requirement in report.requirements:
        if not requirement.met:
            raise BackendUnavailableError(
                f"backend {backend.name} needs {requirement.name}: {requirement.detail}", hint=requirement.fix
            )
    if holes := _open_walls(report):
        raise BackendUnavailableError(
            f"backend {backend.name} does not hold here: {holes[0].name}: {holes[0].detail}",
            hint="`agentbox doctor` runs every check; please report this",
        )
    return report.enforcement


async def output_of(
    backend: Backend, python: Found | None, directory: Directory, network: Network, script: str
) -> bytes:
    """What a Python program prints in a new box that joins this network. Raises ConfinementError, TimeoutError."""

    @contextlib.asynccontextmanager
    async def given() -> AsyncIterator[Network]:
        yield network

    inside = await backend.interpreters()
    if inside is not None:
        python = inside.get("python")
    inspector = _Inspector(backend, python or INTERPRETERS["python"].find(sys.executable), directory, given)
    return await inspector.output(script)


class _Inspector:
    def __init__(self, backend: Backend, python: Found, directory: Directory, networks: Networks | None) -> None:
        self._backend = backend
        self._python = python
        self._directory = directory
        self._networks = networks

    @contextlib.asynccontextmanager
    async def _box(self, limits: Limits) -> AsyncIterator[LiveBox]:
        confinement = Confinement(limits, self._python.directories, image=self._python.image)
        async with contextlib.AsyncExitStack() as stack:
            directory = await stack.enter_async_context(self._directory()) if self._backend.needs_directory else None
            network = await stack.enter_async_context(self._networks()) if self._networks else None
            box = await self._backend.launch(confinement, directory, network=network)
            stack.push_async_callback(box.destroy)
            yield box

    async def _run(self, box: LiveBox, script: str, *arguments: str) -> tuple[int | None, bytes]:
        """(wait status, output) of a Python program in the box, everything it left behind killed."""
        read, write = os.pipe2(os.O_CLOEXEC)
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        watch = asyncio.create_task(box.watch_memory())
        output = asyncio.create_task(asyncio.to_thread(_read_all, read))
        try:
            try:
                argv: Sequence[str] = [self._python.path, "-I", "-c", script, *arguments]
                ended = await box.start(argv, {"LANG": "C.UTF-8"}, box.workspace_path, [null, write, write])
            finally:
                os.close(write)
                os.close(null)
            async with asyncio.timeout(_RUN_SECONDS):
                ending = await ended
        finally:
            await box.kill_programs()
            watch.cancel()
        async with asyncio.timeout(_RUN_SECONDS):
            return ending.status, await output

    async def output(self, script: str) -> bytes:
        """What a program prints in a box of its own."""
        async with self._box(_LIMITS) as box:
            return (await self._run(box, script))[1]

    async def inside(self, resources: list[str]) -> list[Check]:
        """Everything that a guest can try by itself."""
        if not resources:
            return []
        with _canaries() as expected:
            expected |= {"resources": resources, "disk_mb": _LIMITS.disk_mb, "pids": _LIMITS.pids}
            expected |= {"image": self._python.image, "shown": self._python.directories}
            expected |= {"attached": self._networks is not None}
            expected |= {"own_kernel": self._backend.own_kernel, "host_release": os.uname().release}
            async with self._box(_LIMITS) as box:
                expected["writable"] = [box.workspace_path, "/tmp", "/dev/shm"]  # noqa: S108
                status, output = await self._run(box, _GUEST_CHECKS.read_text(), json.dumps(expected))
        try:
            return [Check(*found) for found in json.loads(output)]
        except (ValueError, TypeError):
            detail = f"the checks did not run (status {status}): {output[-300:].decode(errors='replace')}"
            return [Check("checks_run", resource, False, detail) for resource in resources]

    async def memory(self) -> Check:
        """A program that touches more than memory_mb is killed and the box knows why."""
        async with self._box(_TIGHT_MEMORY) as box:
            status, _ = await self._run(box, _EAT_MEMORY)
            killed = box.oom_killed()
        detail = "" if killed else f"400 MB with a limit of {_TIGHT_MEMORY.memory_mb}, status {status}"
        return Check("memory_is_bounded", "memory", killed, detail)

    async def cpu(self) -> Check:
        """A busy program gets no more than its share."""
        async with self._box(_TIGHT_CPU) as box:
            before, began = box.usage().cpu_ms, time.monotonic()
            _, output = await self._run(box, _EAT_CPU)
            after, took_ms = box.usage().cpu_ms, (time.monotonic() - began) * 1000
        used = int(output) if output.strip().isdigit() else 1 << 30
        if self._backend.own_kernel and before is not None and after is not None:
            # A kernel that is itself held counts the time in which it was not allowed to run too.
            used = round((after - before) * 500 / took_ms)
        return Check("cpu_is_bounded", "cpu", used < _CPU_MS_ALLOWED, f"{used} ms of 500 with a limit of 10 %")

    async def cleanup(self) -> Check:
        """A daemon that holds stdout is dead when the box was killed: only then does the pipe end."""
        try:
            async with self._box(_LIMITS) as box:
                await self._run(box, _DAEMON)
        except TimeoutError:
            return Check("nothing_survives", "cleanup", False, "a daemon kept stdout open after the kill")
        return Check("nothing_survives", "cleanup", True)


def _read_all(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        return file.read(1 << 20)


@contextlib.contextmanager
def _canaries() -> Iterator[dict[str, Any]]:
    """Things on the host that a guest must not reach: a file, a TCP listener, an abstract socket."""
    name = f"agentbox-check-{secrets.token_hex(8)}"
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="agentbox-check-"))
        os.chmod(file.name, 0o644)
        tcp = stack.enter_context(socket.socket())
        tcp.bind(("127.0.0.1", 0))
        tcp.listen(1)
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind("\0" + name)
        abstract.listen(1)
        yield {"canary_file": file.name, "tcp_port": tcp.getsockname()[1], "abstract_name": name}
