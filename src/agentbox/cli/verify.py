# SPDX-License-Identifier: MIT
"""`agentbox verify`: whether a trace is what was written, all of it. What it does is in checking.py."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from agentbox.cli.checking import Options, check
from agentbox.cli.show import chosen_trace


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("-t", "--trace", type=click.Path(path_type=Path), help="The trace; default trace.jsonl.")
@click.option(
    "--key", type=click.Path(path_type=Path), help="Trust this public key instead of your own (`agentbox key export`)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object.")
def verify(file: Path | None, trace: Path | None, key: Path | None, as_json: bool) -> None:
    """Check that a trace is whole and that nothing in it was changed."""
    options = Options(str(chosen_trace(file, trace)), None if key is None else str(key), as_json=as_json)
    sys.exit(check(options))
