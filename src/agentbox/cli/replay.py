# SPDX-License-Identifier: MIT
"""`agentbox replay`: run a recorded command again, answered from its trace."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentbox.cli import exit_codes
from agentbox.cli.console import errors_are_lines, load_settings, say
from agentbox.cli.front import DEFAULT_POLICY

if TYPE_CHECKING:
    from agentbox.replay.report import Report


@click.command()
@click.option("-p", "--policy", "policy_path", default=DEFAULT_POLICY, show_default=True, help="The policy file.")
@click.option(
    "-t", "--trace", type=click.Path(path_type=Path), help="The trace of the recorded run; default trace.jsonl."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object on stderr.")
@click.option("-q", "--quiet", is_flag=True, help="Do not show what the command writes.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def replay(policy_path: str, trace: Path | None, as_json: bool, quiet: bool, command: tuple[str, ...]) -> None:
    """Run a recorded COMMAND again and say whether it does the same.

    What it read through agentbox.client, clocks, randomness and the programs that it started are answered from the
    trace. It has no network, and writes to copies. COMMAND may be left out: it is in the trace.
    """
    from agentbox.cli.checking import Options, check_quietly

    path = str(trace or "trace.jsonl")
    with errors_are_lines():
        code, words = check_quietly(Options(path))
        if code != exit_codes.OK:
            for line in words:
                sys.stderr.write(f"{line}\n")
            say("nothing was started")
            sys.exit(code)
        report = _replay(policy_path, path, command, shows_output=not quiet)
    if as_json:
        import json

        sys.stderr.write(json.dumps(report.as_dict()) + "\n")
    else:
        sys.stdout.write("\n".join(report.lines()) + "\n")
    sys.stdout.flush()
    sys.exit(exit_codes.OK if report.ok else exit_codes.FAILURE)


def _replay(policy_path: str, trace: str, command: tuple[str, ...], *, shows_output: bool) -> Report:
    import asyncio

    from agentbox.cli.front import open_closed_streams, policy_of, working_directory
    from agentbox.config import process_environment
    from agentbox.engine.agent_replay import ReplayRequest, replay_agent
    from agentbox.engine.limits import agent_limits
    from agentbox.engine.policy_world import HostFiles
    from agentbox.engine.search_path import with_plain_path
    from agentbox.isolation.early import open_facilities

    open_closed_streams()
    directory = working_directory()
    settings = load_settings()
    limits = agent_limits(settings)
    request = ReplayRequest(
        trace=os.path.abspath(trace),
        argv=command,
        policy=policy_of(policy_path),
        directory=directory,
        environment=with_plain_path(process_environment(), directory),
        limits=limits,
        shows_output=shows_output,
    )
    facilities = open_facilities(None, limits)
    try:
        return asyncio.run(replay_agent(request, settings, HostFiles(), facilities))
    finally:
        facilities.drop()
