# SPDX-License-Identifier: MIT
"""What the command line says on stderr, and how an error ends it. Data goes to stdout, talk to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from agentbox import config
from agentbox.cli import exit_codes
from agentbox.errors import AgentboxError
from agentbox.records import replace

# Backends that hold nothing of files and network; the operator has to ask for them.
WITHOUT_A_WALL = ("subprocess", "unrestricted")


def say(text: str) -> None:
    """One line on stderr, with agentbox's name before it."""
    click.echo(f"agentbox: {text}", err=True)


def fail(message: str, hint: str, code: int) -> NoReturn:
    """Print what is wrong and what to do next, and end the process with `code`."""
    say(message)
    if hint:
        click.echo(f"hint: {hint}", err=True)
    sys.exit(code)


@contextmanager
def errors_are_lines() -> Iterator[None]:
    """Turn an AgentboxError into a message, a hint and its exit code instead of a traceback."""
    try:
        yield
    except AgentboxError as error:
        fail(error.message, error.hint, exit_codes.for_error(type(error)))


def load_settings(**flags: Any) -> config.Settings:
    """Settings of environment and ./.env, overridden by the flags that were given; warnings go to stderr.

    Raises ConfigError for a value that cannot be used.
    """
    settings, warnings = config.load()
    for warning in warnings:
        say(f"warning: {warning}")
    return replace(settings, **{name: value for name, value in flags.items() if value is not None})


class Progress:
    """A line on stderr that is rewritten while something takes time; silent where stderr is no terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Replace the line with `text`, cut to 100 characters."""
        if self._shown:
            click.echo(f"\r\033[K{text[:100]}", nl=False, err=True)

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            click.echo("\r\033[K", nl=False, err=True)
