# SPDX-License-Identifier: MIT
"""Undoing a run, and undoing that: which paths, what is kept so that it can be taken back, in which order."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentbox.errors import CheckpointError
from agentbox.workspace.checkpoint_content import ContentReader, ContentWriter, is_full
from agentbox.workspace.checkpoint_entries import Change, Entry, differences
from agentbox.workspace.checkpoint_files import FORMAT, dump, entry_of_row, load, replace_file
from agentbox.workspace.checkpoint_places import Places
from agentbox.workspace.checkpoint_plan import Plan, plan
from agentbox.workspace.checkpoint_reading import entry_of, read_file
from agentbox.workspace.checkpoint_restore import remove_temporaries, restore, times_around
from agentbox.workspace.checkpoint_scan import Found, Scope, walk
from agentbox.workspace.checkpoint_store import CheckpointStore, Taken

_STATE = "undone"


@dataclass(slots=True)
class Undoing:
    """What an undoing, or the undoing of one, did. `conflicts` were left since somebody changed them after the run;
    `left` could not be done; each with why."""

    paths: list[tuple[str, str]] = field(default_factory=list)
    conflicts: list[tuple[str, str]] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether nothing was left."""
        return not self.conflicts and not self.left


@dataclass(frozen=True, slots=True)
class State:
    """Where a checkpoint stands: `word` is '', 'undoing', 'undone' or 'redoing'; `steps` are what was undone, the
    `before` of each with the content that it had, `times` those of directories around them."""

    word: str
    steps: tuple[Change, ...]
    times: Mapping[str, int]


def state_of(store: CheckpointStore, taken: Taken) -> State:
    """Whether the run was undone. Raises CheckpointError."""
    text = store.read(taken, _STATE)
    if text is None:
        return State("", (), {})
    value = load(text)
    return State(value["state"], tuple(_change(row) for row in value["steps"]), value["times"])


def changes_of(store: CheckpointStore, taken: Taken, *, force: bool) -> list[Change]:
    """What the run changed. Where it ended before it could note that, with `force` everything that differs now.

    Raises CheckpointError.
    """
    noted = store.changes(taken)
    if noted is not None:
        return noted
    if not force:
        raise CheckpointError(
            f"the run of {taken.id} was cut off before it could note what it changed",
            hint="--force takes everything that differs from the checkpoint as changed by it",
        )
    before = store.before(taken)
    after: dict[str, Entry] = {}
    for found in walk(scope_of(taken)):
        with contextlib.suppress(FileNotFoundError):
            after[found.path] = entry_of(found, before.get(found.path))
    return differences(before, after)


def scope_of(taken: Taken) -> Scope:
    """What the checkpoint covers."""
    told = taken.details
    return Scope(
        str(told["directory"]), tuple(told["roots"]), frozenset(told["excluded"]), tuple(told.get("ignored", ()))
    )


def undo(store: CheckpointStore, taken: Taken, *, force: bool = False) -> Undoing:
    """Bring back what the run changed, and keep what was there instead. Raises CheckpointError."""
    _check_place(store, taken)
    with store.opened(taken) as (store_fd, own):
        state = state_of(store, taken)
        begun = {step.path: step for step in state.steps}
        broken_off = state.word in ("undoing", "redoing")
        if broken_off:
            remove_temporaries(begun)
        wanted = [
            Change(change.path, change.after, change.before)
            for change in changes_of(store, taken, force=force)
            # What was undone may have been changed again since, which is no business of the run's.
            if broken_off or change.path not in begun
        ]
        found = plan(wanted, force=force, begun=frozenset(begun))
        if state.word == "undone" and not found.steps and not found.conflicts:
            raise CheckpointError(
                f"the run of {taken.id} is undone already",
                hint="--redo brings its changes back; name an earlier run to undo that one",
            )
        steps = _kept(own, taken.id, found, begun)
        if not steps:
            return Undoing(conflicts=found.conflicts)
        # Those of an undoing that was broken off are from before it.
        times = {**times_around(found.steps), **(state.times if broken_off else {})}
        _note(own, "undoing", steps, times)
        with ContentReader(store_fd) as reader:
            done = restore(found.steps, reader, store.before(taken), times)
        left = {path for path, _ in done.left}
        _note(own, "undone", [step for step in steps if step.path not in left], {})
    return Undoing(done.paths, found.conflicts, done.left)


def redo(store: CheckpointStore, taken: Taken, *, force: bool = False) -> Undoing:
    """Bring back what an undoing took away. Raises CheckpointError."""
    _check_place(store, taken)
    with store.opened(taken) as (store_fd, own):
        state = state_of(store, taken)
        if not state.word:
            raise CheckpointError(f"the run of {taken.id} was not undone", hint="there is nothing to bring back")
        wanted = [Change(step.path, step.after, step.before) for step in state.steps]
        begun = frozenset(step.path for step in state.steps) if state.word != "undone" else frozenset()
        remove_temporaries(begun)
        found = plan(wanted, force=force, begun=begun)
        times = {**times_around(found.steps), **(state.times if state.word == "redoing" else {})}
        _note(own, "redoing", state.steps, times)
        # As it was when the run had ended.
        known = store.before(taken)
        for step in state.steps:
            known.pop(step.path, None)
            if step.before is not None:
                known[step.path] = step.before
        with ContentReader(store_fd) as reader:
            done = restore(found.steps, reader, known, times)
        if not found.conflicts and not done.left:
            for name in os.listdir(own):
                if name == _STATE or name.startswith("redo"):
                    os.unlink(name, dir_fd=own)
        else:
            _note(own, "undone", state.steps, {})
    return Undoing(done.paths, found.conflicts, done.left)


def _kept(own: int, name: str, found: Plan, begun: dict[str, Change]) -> list[Change]:
    """The steps of an undoing with the contents kept that it takes away; those that were begun before come first."""
    used = [file for file in os.listdir(own) if file.startswith("redo")]
    writer = ContentWriter(own, name, "redo" + "o" * len(used))
    steps = list(begun.values())
    try:
        for step in found.steps:
            if step.path in begun:
                continue
            before = step.before
            if before is not None and before.kind == "f":
                before = _keep(step.path, before, writer)
            steps.append(Change(step.path, before, step.after))
        writer.finish()
    except OSError as error:
        raise CheckpointError(
            "what would be undone cannot be kept: " + ("the disk is full" if is_full(error) else str(error.strerror)),
            hint="make room; nothing was undone",
        ) from error
    finally:
        writer.close()
    return steps


def _keep(path: str, entry: Entry, writer: ContentWriter) -> Entry:
    with Places() as places:
        fd, name = places.of(path)
        found = Found(path, fd, name, os.stat(name, dir_fd=fd, follow_symlinks=False))
        reading = read_file(found, large=False)
    try:
        file, offset, digest = writer.keep(reading)
        if digest != entry.content:
            raise CheckpointError(f"{path} is being changed right now", hint="stop what writes it; nothing was undone")
        return entry._replace(file=file, offset=offset)
    finally:
        os.close(reading.fd)


def _check_place(store: CheckpointStore, taken: Taken) -> None:
    directory = str(taken.details["directory"])
    if directory != store.directory:
        raise CheckpointError(
            f"the checkpoint {taken.id} was taken in {directory}, and this is {store.directory}",
            hint="go to where it was taken; a project that was moved cannot be undone by it",
        )


def _note(own: int, word: str, steps: Iterable[Change], times: Mapping[str, int]) -> None:
    replace_file(own, _STATE, dump({"format": FORMAT, "state": word, "steps": list(steps), "times": times}))


def _change(row: Any) -> Change:
    path, one, other = row
    return Change(path, None if one is None else entry_of_row(one), None if other is None else entry_of_row(other))
