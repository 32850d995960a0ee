# SPDX-License-Identifier: MIT
"""`agentbox doctor`: what each backend needs here, what is missing, and what it enforces, proven by its self-check."""

from __future__ import annotations

import json
import platform
import sys
from typing import TYPE_CHECKING, Any

import click

import agentbox
from agentbox.cli import exit_codes
from agentbox.cli.console import WITHOUT_A_WALL, Progress, errors_are_lines, load_settings
from agentbox.records import asdict, dataclass

if TYPE_CHECKING:
    from agentbox.engine.gateway_check import GatewayReport
    from agentbox.engine.inspection import InterpreterReport
    from agentbox.isolation.selfcheck import Check, Report

NAME_WIDTH = 30


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.option(
    "--backend",
    "named",
    multiple=True,
    metavar="NAME",
    help="Examine this backend alone; may be given again. The exit code is then about those named.",
)
def doctor(as_json: bool, named: tuple[str, ...]) -> None:
    """Show what each backend needs, what is missing, and what it enforces here."""
    import asyncio

    from agentbox.engine.inspection import explain_limits, explain_pool, inspect_backends, inspect_interpreters
    from agentbox.isolation.registry import BACKENDS, DEFAULT

    unknown = [name for name in named if name not in BACKENDS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]} is no backend; there are {', '.join(BACKENDS)}", param_hint="--backend")
    with errors_are_lines():
        settings = load_settings()
        default = DEFAULT if settings.sandbox_backend == "auto" else settings.sandbox_backend
        progress = Progress()
        try:
            reports, gateways = asyncio.run(
                inspect_backends(settings, named, lambda name: progress.show(f"{name}: running its self-check ..."))
            )
            warm_pool = asyncio.run(explain_pool(settings))
        finally:
            progress.clear()
        host = Host(inspect_interpreters(settings), explain_limits(), gateways, warm_pool)
    asked = named or (default,)
    usable = all(report.usable for report in reports if report.backend in asked)
    if as_json:
        click.echo(json.dumps(_as_json(reports, host, default, usable), indent=2))
    else:
        verdicts = [_verdict(report, default) for report in reports if report.backend in asked]
        click.echo("\n".join([*_lines(reports, host, default), *verdicts]))
    sys.exit(exit_codes.OK if usable else exit_codes.FAILURE)


@dataclass(frozen=True, slots=True)
class Host:
    """What is reported besides the backends."""

    interpreters: list[InterpreterReport]
    control_groups: str
    gateways: list[GatewayReport]
    warm_pool: str


def _as_json(reports: list[Report], host: Host, default: str, usable: bool) -> dict[str, Any]:
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
        "interpreters": [asdict(interpreter) for interpreter in host.interpreters],
        "control_groups": host.control_groups,
        "warm_pool": host.warm_pool,
        "gateways": {found.backend: _gateway_as_json(found) for found in host.gateways},
    }


def _gateway_as_json(found: GatewayReport) -> dict[str, Any]:
    fields = asdict(found)
    del fields["backend"]
    return {"available": found.usable, **fields}


def _lines(reports: list[Report], host: Host, default: str) -> list[str]:
    lines = [f"agentbox {agentbox.__version__} on {platform.system()} {platform.release()} {platform.machine()}", ""]
    for report in reports:
        lines += [*_backend_lines(report, default), ""]
    for gateway in host.gateways:
        lines += [*_gateway_lines(gateway), ""]
    lines.append("interpreters of /v1/run:")
    for found in host.interpreters:
        lines.append(_row("MISSING" if found.problem else "OK", found.language, found.problem or _version(found)))
        if found.fix:
            lines.append(f"           fix: {found.fix}")
    return [*lines, "", host.control_groups, host.warm_pool, ""]


def _verdict(report: Report, default: str) -> str:
    name = report.backend
    if not report.usable:
        return f"{name} cannot be used here: see the lines marked MISSING or FAILED above."
    if name == default:
        return f"{name} is ready: `agentbox serve` will use it."
    permission = " --allow-unisolated" if name in WITHOUT_A_WALL else ""
    return f"{name} is ready: `agentbox serve --backend {name}{permission}` uses it."


def _version(found: InterpreterReport) -> str:
    return f"{found.version} ({found.path})"


def _backend_lines(report: Report, default: str) -> list[str]:
    state = "available" if report.usable else "not available"
    if report.backend in WITHOUT_A_WALL:
        state += ", without a wall, only with --allow-unisolated"
    lines = [f"{report.backend}: {state}" + (" (default)" if report.backend == default else "")]
    for need in report.requirements:
        lines.append(_row("OK" if need.met else "MISSING", need.name, need.detail))
        if not need.met and need.fix:
            lines += [f"           fix: {line}" for line in need.fix.splitlines()]
    lines += _check_lines(report.checks)
    if report.checks:
        held = "  ".join(f"{resource}={layer}" for resource, layer in asdict(report.enforcement).items())
        lines.append(f"  enforces {held}")
    return lines


def _check_lines(checks: tuple[Check, ...]) -> list[str]:
    failed = [check for check in checks if not check.passed]
    lines = [_row("FAILED", check.name, check.detail) for check in failed]
    if checks:
        passed = f"{len(checks) - len(failed)} of {len(checks)} attempts went as they must"
        lines.append(_row("FAILED" if failed else "OK", "self-check", passed))
    return lines


def _gateway_lines(found: GatewayReport) -> list[str]:
    state = "available" if found.usable else "not available: `net:` rules and allowlists are refused here"
    lines = [f"way out of {found.backend} through the gateway: {state}"]
    if found.problem:
        lines.append(_row("MISSING", "network attachment", found.problem))
        lines += [f"           fix: {line}" for line in found.fix.splitlines()]
    lines += _check_lines(found.checks)
    lines += [_row("NOTE", "not on this host", note) for note in found.notes]
    return lines


def _row(state: str, name: str, detail: str) -> str:
    return f"  {state:<8} {name:<{NAME_WIDTH}} {detail}".rstrip()
