# SPDX-License-Identifier: MIT
"""The parts of the documentation that follow from the code; `make docs` writes them, the tests compare them.

A part stands between `<!-- begin NAME -->` and `<!-- end NAME -->`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import click

from agentbox import errors
from agentbox.cli import exit_codes
from agentbox.cli.commands import cli
from agentbox.config import Settings, env_name

REPOSITORY = Path(__file__).resolve().parents[2]
HELP_WIDTH = 100

# Defaults that depend on the host are described, not printed.
DESCRIBED_DEFAULTS = {
    "max_cpus": "all CPUs",
    "state_dir": "`/var/lib/agentbox` as root, else `$XDG_STATE_HOME/agentbox`",
    "snapshot_dir": "`AGENTBOX_STATE_DIR/snapshots`",
    "egress_allowlist": "unset",
}


def settings_table() -> str:
    """One row for each field of Settings."""
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for field in fields(Settings):
        default = DESCRIBED_DEFAULTS.get(field.name) or _shown(field.default)
        rows.append(f"| `{env_name(field.name)}` | {default} | {field.metadata['doc']} |")
    return "\n".join(rows)


def _shown(value: object) -> str:
    if value in ("", None, ()):
        return "unset"
    if isinstance(value, bool):
        return f"`{int(value)}`"
    return f"`{value}`"


def error_classes() -> Iterator[type[errors.AgentboxError]]:
    """Every class of the error tree, in the order of the file."""
    for _, value in sorted(inspect.getmembers(errors, inspect.isclass), key=lambda item: _line(item[1])):
        if issubclass(value, errors.AgentboxError) and value is not errors.AgentboxError:
            yield value


def _line(value: type) -> int:
    return inspect.getsourcelines(value)[1]


def errors_table() -> str:
    """One row for each error: its code, its class, its docstring, and the exit code of a command it ends."""
    rows = ["| `code` | class | meaning | exit code |", "|---|---|---|---|"]
    for error in error_classes():
        text = " ".join((inspect.getdoc(error) or "").split())
        rows.append(f"| `{error.code}` | `{error.__name__}` | {text} | {exit_codes.for_error(error)} |")
    return "\n".join(rows)


def commands() -> Iterator[tuple[str, click.Command]]:
    """The group, each command, and each command of a command, with what a user types."""
    yield from _commands("agentbox", cli)


def _commands(typed: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield typed, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in sorted(command.list_commands(context)):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _commands(f"{typed} {name}", inner)


def help_texts() -> str:
    """Every `--help`, each below a heading of its own."""
    parts = []
    for typed, command in commands():
        context = click.Context(command, info_name=typed, terminal_width=HELP_WIDTH, max_content_width=HELP_WIDTH)
        parts.append(f"## `{typed}`\n\n```\n$ {typed} --help\n{command.get_help(context)}\n```")
    return "\n\n".join(parts)


def exit_code_table() -> str:
    """One row for each exit code."""
    rows = ["| exit code | meaning |", "|---|---|"]
    rows += [f"| {code} | {meaning} |" for code, meaning in sorted(exit_codes.MEANINGS.items())]
    return "\n".join(rows)


PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "settings": ("docs/reference/settings.md", settings_table),
    "help": ("docs/reference/cli.md", help_texts),
    "exit-codes": ("docs/reference/cli.md", exit_code_table),
    "errors": ("docs/reference/errors.md", errors_table),
}


def part_of(text: str, name: str) -> re.Match[str]:
    """Where the part `name` stands in `text`; ValueError when it has no markers."""
    found = re.search(rf"(?<=<!-- begin {name} -->\n)(.*?)(?=\n<!-- end {name} -->)", text, re.DOTALL)
    if found is None:
        raise ValueError(f"no part {name}")
    return found


def write_all() -> None:
    """Rewrite every part in its file."""
    for name, (path, render) in PARTS.items():
        file = REPOSITORY / path
        text = file.read_text(encoding="utf-8")
        found = part_of(text, name)
        file.write_text(text[: found.start()] + render() + text[found.end() :], encoding="utf-8")


if __name__ == "__main__":
    write_all()
