# SPDX-License-Identifier: MIT
"""`agentbox run` and `agentbox init`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import click

from agentbox.cli import exit_codes
from agentbox.cli.console import errors_are_lines, fail, load_settings, say

DEFAULT_POLICY = "agentbox.policy"

_STARTER = """\
# What the agent may touch. Everything that is not allowed is denied.
allow: read ./src
allow: write ./out

# exec: git status
# env: LANG
# deny: read ./src/secrets
# protect: on
"""


@click.command()
@click.option("-p", "--policy", "policy_path", default=DEFAULT_POLICY, show_default=True, help="The policy file.")
@click.option("-t", "--trace", type=click.Path(path_type=Path), help="Write the trace to this new file.")
@click.option(
    "--isolation",
    type=click.Choice(["auto", "jail", "guard"]),
    default="auto",
    show_default=True,
    help="jail: the kernel holds the policy. guard: only the interpreter does, for hosts without namespaces.",
)
@click.option(
    "--observe", is_flag=True, help="Refuse nothing, record what the policy would deny. There is no wall then."
)
@click.option(
    "--witness",
    type=click.Choice(["off", "exec", "all"]),
    default="exec",
    show_default=True,
    help="What the kernel sees of programs without a guard: what they start, or also what they open and connect to.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object on stderr.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(
    policy_path: str,
    trace: Path | None,
    isolation: str,
    observe: bool,
    witness: str,
    as_json: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND in a box that holds to the policy, and record what it did.

    Put -- before the command: agentbox run -p agentbox.policy -- python agent.py
    """
    if not command:
        fail(
            "no command given (use: agentbox run -p policy -- cmd ...)",
            "put the command behind --",
            exit_codes.USAGE,
        )
    from agentbox import config
    from agentbox.engine.agent_run import AgentRequest, default_limits, run_agent
    from agentbox.engine.policy_world import HostFiles, load_policy

    with errors_are_lines():
        settings = load_settings()
        policy = load_policy(policy_path)
        request = AgentRequest(
            argv=command,
            policy=policy,
            directory=Path(os.path.realpath(os.curdir)),
            environment=config.process_environment(),
            limits=default_limits(settings),
            trace=trace,
            isolation="guard" if observe or isolation == "guard" else "jail",
            observe=observe,
            witness=witness,
        )
        outcome = asyncio.run(run_agent(request, settings, HostFiles()))
    for warning in outcome.warnings:
        say(f"warning: {warning}")
    if outcome.problem:
        say(outcome.problem)
    counts = {kind: outcome.counts.get(kind, 0) for kind in ("effect", "observe", "deny")}
    shown = os.path.relpath(outcome.trace)
    if as_json:
        summary = {"exit_code": outcome.exit_code, "run_id": outcome.run_id, "trace": str(outcome.trace), **counts}
        summary["enforcement"] = asdict(outcome.enforcement)
        click.echo(json.dumps(summary), err=True)
    else:
        effects, observations, denials = counts.values()
        click.echo(
            f"agentbox: recorded {effects} effects, {observations} observations, {denials} denials -> {shown}",
            err=False,
        )
    sys.exit(outcome.exit_code)


@click.command()
def init() -> None:
    """Write a starter policy to ./agentbox.policy."""
    try:
        with open(DEFAULT_POLICY, "x", encoding="utf-8") as file:
            file.write(_STARTER)
    except FileExistsError:
        fail(f"{DEFAULT_POLICY} exists already", "edit it, or remove it first", exit_codes.FAILURE)
    except OSError as error:
        fail(f"{DEFAULT_POLICY} cannot be written: {error.strerror}", "", exit_codes.FAILURE)
    click.echo(f"wrote {DEFAULT_POLICY}")
