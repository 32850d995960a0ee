# SPDX-License-Identifier: MIT
"""What an undoing is to do: paths that are still as the run left them, and those that somebody changed since."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentbox.errors import CheckpointError
from agentbox.workspace.checkpoint_entries import Change, Entry, is_same, is_unchanged
from agentbox.workspace.checkpoint_places import Places
from agentbox.workspace.checkpoint_reading import entry_of
from agentbox.workspace.checkpoint_scan import Found
from agentbox.workspace.names import shown

_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@dataclass(slots=True)
class Plan:
    """What is to be done: `steps` from what a path is now (`before` of each) to what it is to be (`after`).

    `conflicts` are paths that are neither, each with why.
    """

    steps: list[Change] = field(default_factory=list)
    conflicts: list[tuple[str, str]] = field(default_factory=list)


def look(places: Places, path: str, hint: Entry | None = None) -> Entry | None:
    """The state of a path now, None where nothing is. `hint` is a state that it may still have. Raises
    CheckpointError."""
    try:
        fd, name = places.of(path)
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if hint is not None and is_unchanged(hint, status):
            return hint
        return entry_of(Found(path, fd, name, status), None)
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return None
        raise CheckpointError(f"{shown(path)} cannot be looked at: {error.strerror or error}", path=path) from error


def plan(wanted: Iterable[Change], *, force: bool = False, begun: frozenset[str] = frozenset()) -> Plan:
    """What must be done so that each path is what the `after` of its change says, where it is what the `before` says.

    With `force` also where it is something else. `begun` are paths that an undoing which was broken off had begun to
    write. Raises CheckpointError.
    """
    found = Plan()
    with Places() as places:
        for change in wanted:
            now = look(places, change.path, change.before)
            if is_same(now, change.after) and not _has_other_times(now, change, begun):
                # As it should be, maybe with other times since.
                continue
            if is_same(now, change.before) or force or change.path in begun:
                found.steps.append(Change(change.path, now, change.after))
            else:
                found.conflicts.append((change.path, _conflict(now, change.before)))
    return found


def _has_other_times(now: Entry | None, change: Change, begun: frozenset[str]) -> bool:
    """Whether a path has the times that the run gave it, or an undoing that was broken off, which are to be what they
    were too."""
    before, after = change.before, change.after
    if now is None or before is None or after is None:
        return False
    return now.mtime != after.mtime and (now.mtime == before.mtime or change.path in begun)


def _conflict(now: Entry | None, expected: Entry | None) -> str:
    if now is None:
        return "it was removed since"
    if expected is None:
        return "something was put there since"
    return "it was changed since"
