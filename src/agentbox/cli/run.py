# SPDX-License-Identifier: MIT
"""`agentbox run` and `agentbox init`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentbox.cli import exit_codes
from agentbox.cli.console import errors_are_lines, fail, load_settings, say
from agentbox.errors import InvalidRequestError, PolicyError, PolicySyntaxError
from agentbox.records import asdict

if TYPE_CHECKING:
    from agentbox.engine.agent_run import AgentOutcome
    from agentbox.policy.document import Policy

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
@click.option("-q", "--quiet", is_flag=True, help="Print no summary: stdout holds what the command wrote, and no more.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(
    policy_path: str,
    trace: Path | None,
    isolation: str,
    observe: bool,
    witness: str,
    as_json: bool,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND in a box that holds to the policy, and record what it did.

    Put -- before the command: agentbox run -p agentbox.policy -- python agent.py

    Exits with the command's own code, with 128+n after signal n. The last line on stdout says what was recorded;
    where stdout goes on into another program, --quiet leaves it out and --json puts it on stderr.
    """
    if not command:
        fail(
            "no command given (use: agentbox run -p policy -- cmd ...)",
            "put the command behind --",
            exit_codes.USAGE,
        )
    _open_closed_streams()
    import asyncio

    from agentbox import config
    from agentbox.engine.agent_run import AgentRequest, default_limits, run_agent
    from agentbox.engine.policy_world import HostFiles

    with errors_are_lines():
        directory = _working_directory()
        settings = load_settings()
        policy = _policy(policy_path)
        request = AgentRequest(
            argv=command,
            policy=policy,
            directory=directory,
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
    if not quiet:
        _summarize(outcome, as_json)
    sys.exit(outcome.exit_code if outcome.recorded else exit_codes.TRACE_INCOMPLETE)


def _open_closed_streams() -> None:
    """A stream that the caller closed becomes /dev/null: else a file of ours gets its number, and so the command."""
    for number, flags in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)


def _working_directory() -> Path:
    """The directory that relative paths of policy and command start from. Raises InvalidRequestError."""
    try:
        directory = Path(os.path.realpath(os.getcwd()))
        os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))
    except OSError as error:
        raise InvalidRequestError(
            f"the working directory cannot be used: {error.strerror}", hint="change to a directory that exists"
        ) from error
    return directory


def _policy(path: str) -> Policy:
    """The policy of a file. Raises PolicyError; a wrong text is shown with a caret below it."""
    from agentbox.engine.policy_world import load_policy

    try:
        return load_policy(path)
    except PolicySyntaxError as error:
        if error.source:
            error.message += f"\n    {error.source}\n    {error.caret}"
        raise
    except PolicyError as error:
        if not os.path.lexists(path):
            error.hint = "`agentbox init` writes a first agentbox.policy; -p names another file"
        raise


def _summarize(outcome: AgentOutcome, as_json: bool) -> None:
    """The last line. That nobody reads it any more (`| head`) is no failure of the run."""
    counts = {kind: outcome.counts.get(kind, 0) for kind in ("effect", "observe", "deny")}
    if as_json:
        summary = {
            "exit_code": outcome.exit_code,
            "run_id": outcome.run_id,
            "trace": str(outcome.trace.absolute()),
            "recorded": outcome.recorded,
            "problem": outcome.problem,
            "warnings": outcome.warnings,
            "enforcement": asdict(outcome.enforcement),
            **counts,
        }
        click.echo(json.dumps(summary), err=True)
        return
    effects, observations, denials = counts.values()
    shown = os.path.relpath(outcome.trace)
    if shown.startswith(os.pardir):
        shown = str(outcome.trace.absolute())
    try:
        click.echo(f"agentbox: recorded {effects} effects, {observations} observations, {denials} denials -> {shown}")
    except OSError:
        # The flush at exit must not complain again.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


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
