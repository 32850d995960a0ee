# SPDX-License-Identifier: MIT
"""The `agentbox` command. Each command has a file of its own and imports what is heavy only when it runs."""

from __future__ import annotations

import os
import sys

import click

import agentbox
from agentbox.cli import exit_codes
from agentbox.cli.console import fail
from agentbox.cli.doctor import doctor
from agentbox.cli.health import health
from agentbox.cli.key import key
from agentbox.cli.policy import policy
from agentbox.cli.run import init, run
from agentbox.cli.serve import serve
from agentbox.cli.show import show
from agentbox.cli.verify import verify


@click.group()
@click.version_option(agentbox.__version__, prog_name="agentbox")
def cli() -> None:
    """Run code that an AI agent wrote in a box."""


for command in (init, run, show, verify, policy, key, serve, health, doctor):
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
    except Exception as error:
        fail(
            f"internal error: {type(error).__name__}: {error} ({_where(error)})",
            "this is a bug of agentbox: please report it with this line and the output of `agentbox doctor --json`",
            exit_codes.FAILURE,
        )


def _where(error: BaseException) -> str:
    """The innermost places of a traceback, the last one first."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " < ".join(f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in reversed(frames))


if __name__ == "__main__":
    main()
