# SPDX-License-Identifier: MIT
"""Snapshots of sandboxes for runs: packed and unpacked again, by the rules of every archive, where a run begins with
one. The other way, a sandbox begins with what SnapshotStore.restore unpacks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from agentbox.errors import NotFoundError
from agentbox.workspace.archive import read_archive, write_archive
from agentbox.workspace.tree import Tree
from agentbox.workspace.volumes import Volumes, close_volumes

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SandboxSnapshots:
    """Those below one state directory; `opened` opens its volumes. `max_bytes` bounds one. Calls block."""

    def __init__(self, state: Path, opened: Callable[[], Volumes], *, max_bytes: int) -> None:
        self._state = state
        self._opened = opened
        self._max_bytes = max_bytes

    def restore(self, owner: str, snapshot_id: str, tree: Tree) -> tuple[str, ...]:
        """Fill an empty directory; returns warnings about what was left out. Raises NotFoundError, QuotaExceededError,
        WorkspaceError."""
        if not (self._state / "volumes").is_dir():
            raise _unknown(snapshot_id)
        volumes = self._opened()
        try:
            if volumes.snapshots.get(snapshot_id).owner != owner:
                raise _unknown(snapshot_id)
            with tempfile.TemporaryFile(dir=self._state / "volumes") as packed:
                fd = os.open(volumes.snapshots.path(snapshot_id), _DIRECTORY)
                try:
                    written = write_archive(Tree(fd), packed, max_bytes=self._max_bytes)
                finally:
                    os.close(fd)
                packed.seek(0)
                return (*written.warnings, *read_archive(packed, tree, max_bytes=self._max_bytes).warnings)
        finally:
            close_volumes(self._state)


def _unknown(snapshot_id: str) -> NotFoundError:
    return NotFoundError(f"Unknown snapshot: {snapshot_id}", hint="list yours with GET /v1/snapshots")
