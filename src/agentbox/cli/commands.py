# SPDX-License-Identifier: MIT
"""The commands behind `agentbox`. Each has a file of its own, which is imported when the command or its help is
wanted, and imports what is heavy only when it runs."""

from __future__ import annotations

from importlib import import_module

import click

import agentbox

# Each command and the first line of its own help, so that the list of all of them imports none.
_COMMANDS = {
    "changes": "Show what RUN changed: A, M or D for each path, and what differs in it.",
    "diff": "Say where two traces, ONE and OTHER, are different first.",
    "doctor": "Show what each backend needs, what is missing, and what it enforces.",
    "gc": "List and remove what sandboxes of dead processes left; kept workspaces stay.",
    "health": "Ask a running server whether it is well.",
    "image": "Make, import and list images for backend docker.",
    "init": "Write a starter policy to ./agentbox.policy.",
    "key": "Show, make or hand out the key that signs your traces.",
    "policy": "Check a policy file, or ask what it allows.",
    "replay": "Run a recorded COMMAND again and say whether it does the same.",
    "run": "Run COMMAND in a box that holds to the policy, and record what it did.",
    "sandbox": "Make and use durable boxes of a server: files and processes stay until the box is removed.",
    "serve": "Run the HTTP service.",
    "show": "Print what a trace holds, without judging it.",
    "undo": "Bring back what RUN changed, and touch nothing else.",
    "verify": "Check that a trace is whole and that nothing in it was changed.",
}
_ELSEWHERE = {"init": "run"}


class _Commands(click.Group):
    """A group that knows its commands by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click.Group."""
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click.Group."""
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"agentbox.cli.{_ELSEWHERE.get(cmd_name, cmd_name)}")
        found: click.Command = getattr(module, cmd_name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click.Group."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Commands)
@click.version_option(agentbox.__version__, prog_name="agentbox")
def cli() -> None:
    """Run code that an AI agent wrote in a box."""


def run_command() -> int:
    """Run the command that sys.argv names, with click's messages for what is wrong with it; the exit code."""
    try:
        cli.main(prog_name="agentbox", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort as error:
        raise KeyboardInterrupt from error
    return 0
