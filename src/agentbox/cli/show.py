# SPDX-License-Identifier: MIT
"""`agentbox show`: a trace, one line for each record."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from agentbox.cli import exit_codes
from agentbox.cli.console import errors_are_lines, say, tell

DEFAULT_TRACE = Path("trace.jsonl")
# Lines that are no records are named one by one up to this many.
_TOLD = 10


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("-t", "--trace", type=click.Path(path_type=Path), help="The trace; default trace.jsonl.")
@click.option("--json", "as_json", is_flag=True, help="Print each record as a JSON object.")
def show(file: Path | None, trace: Path | None, as_json: bool) -> None:
    """Print what a trace holds, without judging it; `agentbox verify` does that."""
    from agentbox.trace.exporters import jsonl
    from agentbox.trace.reader import Unreadable, read
    from agentbox.trace.record import Entry
    from agentbox.trace.summary import summary

    unreadable = 0

    def readable() -> Iterator[Entry]:
        nonlocal unreadable
        for item in read(chosen_trace(file, trace)):
            if isinstance(item, Unreadable):
                unreadable += 1
                if unreadable <= _TOLD:
                    say(f"line {item.line} is no record: {item.reason}")
            else:
                yield item

    with errors_are_lines():
        for text in jsonl(readable()) if as_json else (f"{summary(entry)}\n" for entry in readable()):
            sys.stdout.write(text)
    sys.stdout.flush()
    if unreadable > _TOLD:
        tell(f"{unreadable - _TOLD} more lines are no records", "ask `agentbox verify` whether it is a trace")
    sys.exit(exit_codes.FAILURE if unreadable else exit_codes.OK)


def chosen_trace(file: Path | None, trace: Path | None) -> Path:
    """The trace that the user named, in either way, else trace.jsonl. Raises click.UsageError when both are given."""
    if file and trace:
        raise click.UsageError("Name the trace once: FILE or -t FILE.")
    return file or trace or DEFAULT_TRACE
