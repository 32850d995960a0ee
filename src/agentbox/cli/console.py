# SPDX-License-Identifier: MIT
"""What the command line says on stderr, and how an error ends it. Data goes to stdout, talk to stderr."""

from __future__ import annotations

import sys

from agentbox.errors import AgentboxError
from agentbox.light.contexts import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

    from agentbox import config

# Backends that hold nothing of files and network; the operator has to ask for them.
WITHOUT_A_WALL = ("subprocess", "unrestricted")


def say(text: str) -> None:
    """One line on stderr, with agentbox's name before it."""
    _write(f"agentbox: {text}\n")


def tell(message: str, hint: str) -> None:
    """Print what is wrong and what to do next."""
    say(message)
    if hint:
        _write(f"hint: {hint}\n")


def fail(message: str, hint: str, code: int) -> NoReturn:
    """Print what is wrong and what to do next, and end the process with `code`."""
    tell(message, hint)
    sys.exit(code)


@contextmanager
def errors_are_lines() -> Iterator[None]:
    """Turn an AgentboxError into a message, a hint and its exit code instead of a traceback."""
    try:
        yield
    except AgentboxError as error:
        from agentbox.cli import exit_codes

        fail(error.message, error.hint, exit_codes.for_error(type(error)))


def load_settings(**flags: Any) -> config.Settings:
    """Settings of environment and ./.env, overridden by the flags that were given; warnings go to stderr.

    Raises ConfigError for a value that cannot be used.
    """
    from agentbox import config
    from agentbox.records import replace

    settings, warnings = config.load()
    for warning in warnings:
        say(f"warning: {warning}")
    given = {name: value for name, value in flags.items() if value is not None}
    return replace(settings, **given) if given else settings


class Progress:
    """A line on stderr that is rewritten while something takes time; silent where stderr is no terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Replace the line with `text`, cut to 100 characters."""
        if self._shown:
            _write(f"\r\033[K{text[:100]}")

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            _write("\r\033[K")


def _write(text: str) -> None:
    # None where the caller closed it.
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()
