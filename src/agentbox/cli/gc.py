# SPDX-License-Identifier: MIT
"""`agentbox gc`: what sandboxes of dead processes left behind."""

from __future__ import annotations

import json

import click

from agentbox.cli import exit_codes
from agentbox.cli.console import errors_are_lines, load_settings


@click.command()
@click.option("--dry-run", is_flag=True, help="Only list it.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def gc(dry_run: bool, as_json: bool) -> None:
    """List and remove what sandboxes of dead processes left; kept workspaces stay."""
    import asyncio

    from agentbox.sandbox.collecting import collect

    with errors_are_lines():
        found = asyncio.run(collect(load_settings(), remove=not dry_run))
    if as_json:
        click.echo(
            json.dumps({"removed": not dry_run, "found": [{"what": o.what, "problem": o.problem} for o in found]})
        )
    else:
        for one in found:
            word = "found" if dry_run else "not removed" if one.problem else "removed"
            click.echo(f"{word}: {one.what}{f': {one.problem}' if one.problem else ''}")
        if not found:
            click.echo("nothing was left behind")
    if any(one.problem for one in found):
        raise SystemExit(exit_codes.FAILURE)
