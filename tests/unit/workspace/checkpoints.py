# SPDX-License-Identifier: MIT
"""A project with checkpoints, as tests use it: what a tree is, byte by byte, and runs that change it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from agentbox.workspace import checkpoint_undo
from agentbox.workspace.checkpoint_entries import Change, Entry
from agentbox.workspace.checkpoint_scan import Scope
from agentbox.workspace.checkpoint_store import CheckpointStore
from agentbox.workspace.checkpoint_undo import Undoing


def state_of(top: Path) -> dict[bytes, tuple[object, ...]]:
    """Everything below a directory: kind, permissions, owner, time, and content, link target or links."""
    found: dict[bytes, tuple[object, ...]] = {}
    waiting = [os.fsencode(top)]
    while waiting:
        here = waiting.pop()
        status = os.lstat(here)
        content: object = None
        if stat.S_ISREG(status.st_mode):
            with open(here, "rb") as file:
                content = (file.read(1 << 22), status.st_size)
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(here)
        elif stat.S_ISDIR(status.st_mode):
            waiting += [here + b"/" + name for name in os.listdir(here) if name != b".agentbox"]
        found[here] = (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, content)
    return found


@dataclass
class Project:
    """A directory whose `work` a run may write."""

    top: Path
    count: int = 0

    @property
    def work(self) -> Path:
        """What runs may write."""
        return self.top / "work"

    @property
    def store(self) -> CheckpointStore:
        """Its checkpoints."""
        return CheckpointStore(str(self.top))

    def scope(self, *ignored: str) -> Scope:
        """What its checkpoints cover."""
        return Scope(str(self.top), (str(self.work),), frozenset([f"{self.top}/.agentbox"]), ignored)

    def begin(self, *ignored: str) -> Run:
        """A run takes its checkpoint."""
        self.count += 1
        name = f"20260101-000000-{self.count:06x}"
        (self.top / ".agentbox").mkdir(exist_ok=True)
        return Run(self, name, self.scope(*ignored), self.store.take(name, f"run{self.count}", self.scope(*ignored)))


@dataclass
class Run:
    """A run that has taken its checkpoint and may change things."""

    project: Project
    name: str
    scope: Scope
    before: dict[str, Entry]

    def end(self) -> dict[str, str]:
        """The run has ended: what it changed, a letter for each path below the work."""
        changes = self.project.store.note_changes(self.name, self.scope, self.before)
        return {self._below(change): change.status for change in changes if change.is_shown}

    def _below(self, change: Change) -> str:
        return os.path.relpath(change.path, self.project.work)

    def undo(self, *, force: bool = False) -> Undoing:
        """Undo it."""
        return checkpoint_undo.undo(self.project.store, self.project.store.get(self.name), force=force)

    def redo(self, *, force: bool = False) -> Undoing:
        """Undo the undoing."""
        return checkpoint_undo.redo(self.project.store, self.project.store.get(self.name), force=force)
