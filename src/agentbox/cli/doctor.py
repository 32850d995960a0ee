# SPDX-License-Identifier: MIT
"""`agentbox doctor`: what each backend needs here, what is missing, and what it enforces, proven by its self-check."""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

import agentbox
from agentbox.cli import exit_codes
from agentbox.cli.console import Progress, errors_are_lines, load_settings
from agentbox.errors import AgentboxError

if TYPE_CHECKING:
    from agentbox.config import Settings

NAME_WIDTH = 28


@dataclass(frozen=True, slots=True)
class RequirementLine:
    """One thing that a backend needs, whether this host has it, and how to get it."""

    name: str
    met: bool
    detail: str
    fix: str


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One named check of the self-check and how it went; `resource` is a field of Enforcement."""

    name: str
    resource: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that was found out about one backend. `error` says why the self-check could not run."""

    backend: str
    requirements: tuple[RequirementLine, ...]
    checks: tuple[CheckLine, ...] = ()
    enforcement: dict[str, str] = field(default_factory=dict)
    error: str = ""
    hint: str = ""

    @property
    def available(self) -> bool:
        """Whether every requirement is met and the self-check ran and passed."""
        return not self.error and all(r.met for r in self.requirements) and all(c.passed for c in self.checks)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def doctor(as_json: bool) -> None:
    """Show what each backend needs, what is missing, and what it enforces here."""
    with errors_are_lines():
        from agentbox.isolation.registry import DEFAULT

        settings = load_settings()
        default = DEFAULT if settings.sandbox_backend == "auto" else settings.sandbox_backend
        found = _diagnose_all(settings)
    usable = any(d.available for d in found if d.backend == default)
    if as_json:
        click.echo(json.dumps(_as_json(found, default, usable), indent=2))
    else:
        click.echo(_as_text(found, default, usable))
    sys.exit(exit_codes.OK if usable else exit_codes.FAILURE)


def _diagnose_all(settings: Settings) -> list[Diagnosis]:
    from agentbox.isolation.registry import BACKENDS

    progress = Progress()
    found = []
    for name in BACKENDS:
        progress.show(f"{name}: running its self-check ...")
        found.append(_diagnose(name, settings))
    progress.clear()
    return found


def _diagnose(name: str, settings: Settings) -> Diagnosis:
    """Requirements of one backend, and its self-check when they are met."""
    from agentbox.isolation.registry import BACKENDS
    from agentbox.isolation.selfcheck import run_selfcheck

    needs = tuple(RequirementLine(r.name, r.met, r.detail, r.fix) for r in BACKENDS[name]().requirements())
    if not all(need.met for need in needs):
        return Diagnosis(name, needs)
    try:
        # Asking for a diagnosis is not asking to run anybody's code, so a backend without a wall may be examined.
        report = run_selfcheck(name, replace(settings, allow_unisolated=True))
    except AgentboxError as error:
        return Diagnosis(name, needs, error=error.message, hint=error.hint)
    checks = tuple(CheckLine(c.name, c.resource, c.passed, c.detail) for c in report.checks)
    enforcement = {resource: str(layer) for resource, layer in asdict(report.enforcement).items()}
    return Diagnosis(name, needs, checks, enforcement)


def _as_json(found: list[Diagnosis], default: str, usable: bool) -> dict[str, Any]:
    return {
        "version": agentbox.__version__,
        "host": {"system": platform.system(), "kernel": platform.release(), "machine": platform.machine()},
        "default_backend": default,
        "usable": usable,
        "backends": {d.backend: {"available": d.available} | asdict(d) for d in found},
    }


def _as_text(found: list[Diagnosis], default: str, usable: bool) -> str:
    lines = [f"agentbox {agentbox.__version__} on {platform.system()} {platform.release()} {platform.machine()}", ""]
    for diagnosis in found:
        lines += [*_backend_lines(diagnosis, default), ""]
    if usable:
        lines.append(f"{default} is ready: `agentbox serve` will use it.")
    else:
        lines.append(f"{default} cannot be used here: see the lines marked MISSING or FAILED above.")
    return "\n".join(lines)


def _backend_lines(diagnosis: Diagnosis, default: str) -> list[str]:
    title = "available" if diagnosis.available else "not available"
    lines = [f"{diagnosis.backend}: {title}" + (" (default)" if diagnosis.backend == default else "")]
    for need in diagnosis.requirements:
        lines.append(_row("OK" if need.met else "MISSING", need.name, need.detail))
        if not need.met and need.fix:
            lines += [f"           fix: {line}" for line in need.fix.splitlines()]
    failed = [check for check in diagnosis.checks if not check.passed]
    lines += [_row("FAILED", check.name, check.detail) for check in failed]
    if diagnosis.error:
        lines.append(_row("FAILED", "self-check", diagnosis.error))
        if diagnosis.hint:
            lines.append(f"           fix: {diagnosis.hint}")
    elif diagnosis.checks:
        total = len(diagnosis.checks)
        lines.append(_row("OK" if not failed else "FAILED", "self-check", f"{total - len(failed)} of {total} passed"))
    if diagnosis.enforcement:
        held = "  ".join(f"{resource}={layer}" for resource, layer in diagnosis.enforcement.items())
        lines.append(f"  enforces {held}")
    return lines


def _row(state: str, name: str, detail: str) -> str:
    return f"  {state:<8} {name:<{NAME_WIDTH}} {detail}".rstrip()
