# SPDX-License-Identifier: MIT
"""`agentbox changes`: what a run changed, path by path, with diffs."""

from __future__ import annotations

import click

from agentbox.cli.console import errors_are_lines, say
from agentbox.cli.undo import chosen, shown_path, store_here


@click.command()
@click.argument("run", required=False)
@click.option("--name-only", is_flag=True, help="Print the paths alone.")
@click.option("--no-diff", is_flag=True, help="Print A, M or D and the path, and no diffs.")
@click.option("--force", is_flag=True, help="Of a run that was cut off: everything that differs from its checkpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def changes(run: str | None, name_only: bool, no_diff: bool, force: bool, as_json: bool) -> None:
    """Show what RUN changed: A, M or D for each path, and what differs in it.

    RUN is the id of a checkpoint or of a run, or the beginning of one; without it the last run of this directory.
    """
    with errors_are_lines():
        from agentbox.workspace.checkpoint_diff import diffs
        from agentbox.workspace.checkpoint_undo import state_of

        store = store_here()
        taken = chosen(store, run)
        found = diffs(store, taken, force=force, with_text=not (name_only or no_diff))
        state = state_of(store, taken).word
    directory = store.directory
    if as_json:
        import json

        rows = [{"status": one.status, "path": one.path, "diff": one.text, "note": one.note} for one in found]
        click.echo(json.dumps({"checkpoint": taken.id, "state": state, "changes": rows}))
        return
    for one in found:
        path = shown_path(one.path, directory)
        if name_only:
            click.echo(path)
            continue
        click.echo(f"{one.status} {path}{f' ({one.note})' if one.note else ''}")
        if one.text:
            click.echo(one.text, nl=False)
    if not found:
        say(f"the run of {taken.id} changed nothing")
    if state and not name_only:
        say(f"the run of {taken.id} is {state}")
