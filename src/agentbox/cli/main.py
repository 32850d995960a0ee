# SPDX-License-Identifier: MIT
"""The `agentbox` command. Each command has a file of its own and imports what is heavy only when it runs."""

from __future__ import annotations

import sys

import click

import agentbox
from agentbox.cli import exit_codes
from agentbox.cli.doctor import doctor
from agentbox.cli.health import health
from agentbox.cli.serve import serve


@click.group()
@click.version_option(agentbox.__version__, prog_name="agentbox")
def cli() -> None:
    """Run code that an AI agent wrote in a box."""


for command in (serve, health, doctor):
    cli.add_command(command)


def main() -> None:
    """Entry point of the `agentbox` script."""
    try:
        cli.main(prog_name="agentbox", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(exit_codes.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away (`agentbox doctor | head`); the flush at exit must not complain again.
        sys.stdout = open("/dev/null", "w", encoding="utf-8")  # noqa: SIM115
        sys.exit(exit_codes.FAILURE)


if __name__ == "__main__":
    main()
