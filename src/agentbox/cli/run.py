# SPDX-License-Identifier: MIT
"""`agentbox run` and `agentbox init`: their options, their help, and what is said about wrong ones."""

from __future__ import annotations

import sys

import click

from agentbox.cli import exit_codes
from agentbox.cli.console import fail
from agentbox.cli.front import DEFAULT_POLICY, ISOLATIONS, WITNESSES, Options, run_at_once

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
@click.option("-t", "--trace", type=click.Path(), help="Write the trace to this new file.")
@click.option(
    "--isolation",
    type=click.Choice(ISOLATIONS),
    default="auto",
    show_default=True,
    help="jail: the kernel holds the policy. gvisor: a kernel of its own does. docker: a container of an image. guard: "
    "only the interpreter does, for hosts without namespaces.",
)
@click.option(
    "--observe", is_flag=True, help="Refuse nothing, record what the policy would deny. There is no wall then."
)
@click.option(
    "--checkpoint", is_flag=True, help="Before the first change, keep what may change: `agentbox undo` brings it back."
)
@click.option(
    "--witness",
    type=click.Choice(WITNESSES),
    default="exec",
    show_default=True,
    help="What the kernel sees of programs without a guard: what they start, or also what they open and connect to.",
)
@click.option(
    "--live-clocks",
    is_flag=True,
    help="Leave clocks and randomness alone. A replay then has others, and fails where the command depends on them.",
)
@click.option(
    "--hash-bodies",
    is_flag=True,
    help="Record no content: of results, outputs and files only hashes. Such a run cannot be replayed.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object on stderr.")
@click.option("-q", "--quiet", is_flag=True, help="Print no summary: stdout holds what the command wrote, and no more.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(
    policy_path: str,
    trace: str | None,
    isolation: str,
    observe: bool,
    checkpoint: bool,
    live_clocks: bool,
    hash_bodies: bool,
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
    options = Options()
    options.policy = policy_path
    options.trace = trace
    options.isolation = isolation
    options.observe = observe
    options.checkpoint = checkpoint
    options.live_clocks = live_clocks
    options.hash_bodies = hash_bodies
    options.witness = witness
    options.as_json = as_json
    options.quiet = quiet
    options.command = command
    sys.exit(run_at_once(options))


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
