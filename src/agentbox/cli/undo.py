# SPDX-License-Identifier: MIT
"""`agentbox undo`: bring back what a run changed, and nothing else."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from agentbox.cli import exit_codes
from agentbox.cli.console import errors_are_lines, say

if TYPE_CHECKING:
    from agentbox.workspace.checkpoint_store import CheckpointStore, Taken
    from agentbox.workspace.checkpoint_undo import Undoing

# The part of a run's name that says when: YYYYMMDD-HHMMSS.
_SECONDS = 15
_WORDS = {"A": "made", "M": "restored", "D": "removed"}


@click.command()
@click.argument("run", required=False)
@click.option("--redo", is_flag=True, help="Bring back what an undo took away.")
@click.option("--force", is_flag=True, help="Also what somebody changed after the run.")
@click.option("--list", "as_list", is_flag=True, help="List the checkpoints of this directory, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def undo(run: str | None, redo: bool, force: bool, as_list: bool, as_json: bool) -> None:
    """Bring back what RUN changed, and touch nothing else.

    RUN is the id of a checkpoint or of a run, or the beginning of one; without it the last run of this directory. Files
    that somebody changed after the run are left as they are, and named. What was undone can be brought back: --redo.
    """
    if as_list and (redo or force or run):
        raise click.UsageError("--list stands alone.")
    with errors_are_lines():
        from agentbox.workspace import checkpoint_undo

        store = store_here()
        if as_list:
            _list(store, as_json=as_json)
            return
        taken = chosen(store, run)
        done = (checkpoint_undo.redo if redo else checkpoint_undo.undo)(store, taken, force=force)
    _tell(done, taken, redo=redo, as_json=as_json, directory=store.directory)
    sys.exit(exit_codes.OK if done.is_whole else exit_codes.FAILURE)


def store_here() -> CheckpointStore:
    """The checkpoints of the working directory."""
    from agentbox.workspace.checkpoint_store import CheckpointStore

    return CheckpointStore(os.path.realpath(os.getcwd()))


def chosen(store: CheckpointStore, named: str | None) -> Taken:
    """The checkpoint that the user named, else that of the last run here. Raises NotFoundError."""
    from agentbox.errors import NotFoundError

    if named is not None:
        try:
            return store.find(named)
        except NotFoundError:
            runs = [name for name in _runs(store.directory) if named and name.startswith(named)]
            if len(runs) != 1:
                raise
            raise NotFoundError(
                f"the run {runs[0]} took no checkpoint, or it was removed for newer ones",
                hint="`agentbox undo --list` names those that are there",
            ) from None
    found = store.all()
    if not found:
        raise NotFoundError(
            f"no run in {store.directory} took a checkpoint",
            hint="`agentbox run --checkpoint` takes one before the first change",
        )
    last = _last_run(store.directory)
    # A run whose trace was to lie elsewhere has none here.
    if last > found[0].id[:_SECONDS] and last != found[0].id and last not in [taken.id for taken in found]:
        raise NotFoundError(
            f"the last run, {last}, took no checkpoint: it changed nothing, or was started without --checkpoint",
            hint=f"name an earlier one to mean that: {found[0].id}",
        )
    return found[0]


def _last_run(directory: str) -> str:
    """The name of the last run that has a directory here, '' for none."""
    return max(
        _runs(directory),
        key=lambda name: (name[:_SECONDS], _written(f"{directory}/.agentbox/runs/{name}")),
        default="",
    )


def _runs(directory: str) -> list[str]:
    """The names of all runs that have a directory here."""
    try:
        return os.listdir(f"{directory}/.agentbox/runs")
    except OSError:
        return []


def _written(run: str) -> int:
    """When the trace of a run was written last; names tell runs of one second not apart."""
    try:
        return os.stat(f"{run}/trace.jsonl").st_mtime_ns
    except OSError:
        return 0


def _list(store: CheckpointStore, *, as_json: bool) -> None:
    from agentbox.workspace.checkpoint_undo import state_of

    rows = []
    for taken in store.all():
        changes = store.changes(taken)
        shown = None if changes is None else sum(change.is_shown for change in changes)
        rows.append({"id": taken.id, "run_id": taken.run_id, "changed": shown, "state": state_of(store, taken).word})
    if as_json:
        import json

        click.echo(json.dumps(rows))
        return
    for row in rows:
        changed = "cut off" if row["changed"] is None else f"{row['changed']} changed"
        click.echo(f"{row['id']}  {changed}{', ' + str(row['state']) if row['state'] else ''}")
    if not rows:
        say("no checkpoints here")


def shown_path(path: str, directory: str) -> str:
    """A path for a person: from the working directory where it lies below, control characters escaped."""
    from agentbox.workspace.names import shown

    inside = path.startswith(directory.rstrip("/") + "/")
    return shown(path[len(directory.rstrip("/")) + 1 :] if inside else path, limit=4096)


def _tell(done: Undoing, taken: Taken, *, redo: bool, as_json: bool, directory: str) -> None:
    if as_json:
        import json

        paths = [{"status": status, "path": path} for status, path in done.paths]
        told = {
            "checkpoint": taken.id,
            "action": "redo" if redo else "undo",
            "paths": paths,
            "conflicts": [{"path": path, "why": why} for path, why in done.conflicts],
            "left": [{"path": path, "why": why} for path, why in done.left],
        }
        click.echo(json.dumps(told))
        return
    for status, path in done.paths:
        click.echo(f"{_WORDS[status]} {shown_path(path, directory)}")
    for path, why in done.conflicts:
        say(f"left as it is: {shown_path(path, directory)}: {why}; --force takes it too")
    for path, why in done.left:
        say(f"could not be done: {shown_path(path, directory)}: {why}")
    ignored = taken.details.get("ignored")
    if ignored and not redo:
        say(f"not covered, as snapback.toml says: {', '.join(map(str, ignored))}")
    if not done.paths and done.is_whole:
        click.echo(f"agentbox: {taken.id}: nothing to {'bring back' if redo else 'undo'}")
        return
    what = "brought back the changes of" if redo else "undid"
    back = "`agentbox undo` undoes them again" if redo else "`agentbox undo --redo` brings its changes back"
    click.echo(f"agentbox: {what} {taken.id}: {len(done.paths)} paths; {back}")


__all__ = ["chosen", "shown_path", "store_here", "undo"]
