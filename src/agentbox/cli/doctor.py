# SPDX-License-Identifier: MIT
"""`agentbox doctor`: what each backend needs here, what is missing, and what it enforces, proven by its self-check."""

from __future__ import annotations

import contextlib
import json
import platform
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

import agentbox
from agentbox.cli import exit_codes
from agentbox.cli.console import WITHOUT_A_WALL, Progress, errors_are_lines, load_settings
from agentbox.errors import AgentboxError

if TYPE_CHECKING:
    from agentbox.config import Settings
    from agentbox.isolation.selfcheck import Report

NAME_WIDTH = 30


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def doctor(as_json: bool) -> None:
    """Show what each backend needs, what is missing, and what it enforces here."""
    import asyncio

    from agentbox.isolation.registry import DEFAULT

    with errors_are_lines():
        settings = load_settings()
        default = DEFAULT if settings.sandbox_backend == "auto" else settings.sandbox_backend
        reports = asyncio.run(_examine_all(settings))
    usable = any(report.usable for report in reports if report.backend == default)
    if as_json:
        click.echo(json.dumps(_as_json(reports, default, usable), indent=2))
    else:
        click.echo(_as_text(reports, default, usable))
    sys.exit(exit_codes.OK if usable else exit_codes.FAILURE)


async def _examine_all(settings: Settings) -> list[Report]:
    """The report of every backend. Asking for a diagnosis runs only our own code, so no backend needs a permission."""
    from agentbox.isolation import registry
    from agentbox.isolation.facilities import Facilities
    from agentbox.isolation.interpreters import INTERPRETERS, locate
    from agentbox.isolation.requirement import Requirement
    from agentbox.isolation.selfcheck import Report, examine
    from agentbox.models import Enforcement

    python = locate(INTERPRETERS["python"], settings.python)
    progress = Progress()
    reports = []
    facilities = await Facilities.open()
    try:
        for name in registry.BACKENDS:
            progress.show(f"{name}: running its self-check ...")
            try:
                reports.append(await examine(registry.make(name, facilities), python, _directory))
            except AgentboxError as error:
                problem = Requirement("self-check", False, error.message, error.hint)
                reports.append(Report(name, (problem,), (), Enforcement()))
    finally:
        progress.clear()
        await facilities.close()
    return reports


@contextlib.asynccontextmanager
async def _directory() -> AsyncIterator[str]:
    """A workspace for a backend that needs one."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="agentbox-doctor-", ignore_cleanup_errors=True) as path:
        yield path


def _as_json(reports: list[Report], default: str, usable: bool) -> dict[str, Any]:
    backends = {}
    for report in reports:
        fields = asdict(report)
        del fields["backend"]
        backends[report.backend] = {"available": report.usable, **fields}
    return {
        "version": agentbox.__version__,
        "host": {"system": platform.system(), "kernel": platform.release(), "machine": platform.machine()},
        "default_backend": default,
        "usable": usable,
        "backends": backends,
    }


def _as_text(reports: list[Report], default: str, usable: bool) -> str:
    lines = [f"agentbox {agentbox.__version__} on {platform.system()} {platform.release()} {platform.machine()}", ""]
    for report in reports:
        lines += [*_backend_lines(report, default), ""]
    if usable:
        lines.append(f"{default} is ready: `agentbox serve` will use it.")
    else:
        lines.append(f"{default} cannot be used here: see the lines marked MISSING or FAILED above.")
    return "\n".join(lines)


def _backend_lines(report: Report, default: str) -> list[str]:
    state = "available" if report.usable else "not available"
    if report.backend in WITHOUT_A_WALL:
        state += ", without a wall, only with --allow-unisolated"
    lines = [f"{report.backend}: {state}" + (" (default)" if report.backend == default else "")]
    for need in report.requirements:
        lines.append(_row("OK" if need.met else "MISSING", need.name, need.detail))
        if not need.met and need.fix:
            lines += [f"           fix: {line}" for line in need.fix.splitlines()]
    failed = [check for check in report.checks if not check.passed]
    lines += [_row("FAILED", check.name, check.detail) for check in failed]
    if report.checks:
        passed = f"{len(report.checks) - len(failed)} of {len(report.checks)} attempts were refused"
        lines.append(_row("FAILED" if failed else "OK", "self-check", passed))
        held = "  ".join(f"{resource}={layer}" for resource, layer in asdict(report.enforcement).items())
        lines.append(f"  enforces {held}")
    return lines


def _row(state: str, name: str, detail: str) -> str:
    return f"  {state:<8} {name:<{NAME_WIDTH}} {detail}".rstrip()
