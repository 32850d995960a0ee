# SPDX-License-Identifier: MIT
"""This host as agentbox sees it: backends and their self-checks, interpreters, control groups."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Collection

from agentbox.config import Settings
from agentbox.engine.gateway_check import GatewayReport, inspect_gateway
from agentbox.engine.runner import furnish
from agentbox.errors import AgentboxError
from agentbox.isolation import registry
from agentbox.isolation.backend import Program
from agentbox.isolation.backends.jail import JailBackend
from agentbox.isolation.facilities import Facilities
from agentbox.isolation.interpreters import INTERPRETERS, locate
from agentbox.isolation.plan import WORKSPACE
from agentbox.isolation.pool.shape import PoolShape
from agentbox.isolation.requirement import Requirement
from agentbox.isolation.selfcheck import Report, examine
from agentbox.linux.cgroups import CgroupTree
from agentbox.models import Confinement, Enforcement, Layer, Limits
from agentbox.records import dataclass


@dataclass(frozen=True, slots=True)
class InterpreterReport:
    """An interpreter of this host: `path` and `version`, or what is wrong with it and what to do."""

    language: str
    path: str = ""
    version: str = ""
    problem: str = ""
    fix: str = ""


async def inspect_backends(
    settings: Settings, names: Collection[str], on_begin: Callable[[str], None]
) -> tuple[list[Report], list[GatewayReport]]:
    """The reports of the backends with these names, of all when there are none, in the order of the registry, and of
    the way out of those that hold the network; `on_begin` gets a backend's name before its checks run.

    Asking for a diagnosis runs only our own code, so no backend needs a permission. Raises ConfigError when the
    configured Python cannot be used.
    """
    python = await asyncio.to_thread(locate, INTERPRETERS["python"], settings.python)
    facilities = await Facilities.open()
    furnish(facilities, settings)
    reports: list[Report] = []
    gateways: list[GatewayReport] = []
    try:
        for name in [name for name in registry.BACKENDS if name in names or not names]:
            on_begin(name)
            try:
                backend = registry.make(name, facilities)
                reports.append(await examine(backend, python, _directory))
                if reports[-1].usable and backend.claims().network is Layer.KERNEL:
                    gateways.append(await inspect_gateway(backend, python, _directory))
            except AgentboxError as error:
                problem = Requirement("self-check", False, error.message, error.hint)
                reports.append(Report(name, (problem,), (), Enforcement()))
    finally:
        await facilities.close()
    return reports, gateways


@contextlib.asynccontextmanager
async def _directory() -> AsyncIterator[str]:
    """A workspace for a backend that needs one."""
    with tempfile.TemporaryDirectory(prefix="agentbox-doctor-", ignore_cleanup_errors=True) as path:
        yield path


def inspect_interpreters(settings: Settings) -> list[InterpreterReport]:
    """What each language of /v1/run would be run with."""
    reports = []
    for language, interpreter in INTERPRETERS.items():
        try:
            found = locate(interpreter, getattr(settings, interpreter.setting))
        except AgentboxError as error:
            reports.append(InterpreterReport(language, problem=error.message, fix=error.hint))
            continue
        if found is None:
            program = interpreter.programs[-1]
            fix = f"install it (Debian: `apt-get install {_PACKAGES.get(language, program)}`), or set "
            reports.append(
                InterpreterReport(
                    language, problem=f"no {program} on PATH", fix=f"{fix}AGENTBOX_{interpreter.setting.upper()}"
                )
            )
        else:
            reports.append(InterpreterReport(language, found.path, found.version))
    return reports


_PACKAGES = {"javascript": "nodejs"}


async def explain_pool(settings: Settings) -> str:
    """For people: whether runs find a warm Python here, by trying, and if not, why."""
    if not settings.pool:
        return "no warm pool: AGENTBOX_POOL is off, so every run starts its interpreter"
    facilities = await Facilities.open()
    jail = JailBackend(facilities)
    try:
        python = await asyncio.to_thread(locate, INTERPRETERS["python"], settings.python)
        lacks = "there is no Python for boxes"
        if python is not None:
            program = Program("doctor", (python.path, f"{WORKSPACE}/main.py"), {})
            shape = PoolShape(size=0, owners=1, modules=(), runs=1, seconds=1)
            limits = Limits(timeout_seconds=1, memory_mb=64, cpus=1.0, pids=8, disk_mb=8, max_output_bytes=1024)
            lacks = await jail.open_pool(shape, (Confinement(limits, python.directories), program))
    except AgentboxError as error:
        lacks = error.message
    finally:
        await jail.close()
        await facilities.close()
    return f"no warm pool, so runs start cold: {lacks}" if lacks else "warm pool: runs find Python started"


def explain_limits() -> str:
    """For people: which limits control groups hold here, why others are not held, and how to get them."""
    return CgroupTree.explain()
