# SPDX-License-Identifier: MIT
"""`agentbox replay`: its options and its help. What it does is in replaying.py."""

from __future__ import annotations

import sys

import click

from agentbox.cli.front import DEFAULT_POLICY
from agentbox.cli.replaying import DEFAULT_TRACE, Options, replay_at_once


@click.command()
@click.option("-p", "--policy", "policy_path", default=DEFAULT_POLICY, show_default=True, help="The policy file.")
@click.option(
    "-t", "--trace", type=click.Path(), default=DEFAULT_TRACE, show_default=True, help="The recorded run's trace."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object on stderr.")
@click.option("-q", "--quiet", is_flag=True, help="Do not show what the command writes.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def replay(policy_path: str, trace: str, as_json: bool, quiet: bool, command: tuple[str, ...]) -> None:
    """Run a recorded COMMAND again and say whether it does the same.

    What it did through agentbox.client, clocks, randomness and the programs that it started are answered from the
    trace. It has no network, and writes to copies. COMMAND may be left out: it is in the trace.

    Exits with 0 when everything was as it was recorded, and with 1 when it was not or the trace was changed; a command
    that failed when it was recorded must fail in the same way. A trace that cannot be trusted gives the exit code of
    `agentbox verify`.
    """
    options = Options()
    options.policy = policy_path
    options.trace = trace
    options.as_json = as_json
    options.quiet = quiet
    options.command = command
    sys.exit(replay_at_once(options))
