# SPDX-License-Identifier: MIT
"""Snapshots of workspaces that boxes live in: a read-only copy `ID`, and `ID.json` that says of what, when and whose.

An id has the form of a run's snapshot (snapshots.py), so that one name serves for both.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from agentbox.errors import NotFoundError, WorkspaceError
from agentbox.linux.cgroup_owners import is_dead, owner_name
from agentbox.models import DEFAULT_OWNER
from agentbox.records import asdict, dataclass
from agentbox.workspace.names import shown
from agentbox.workspace.volume_grounds import Ground, Told

_ID = re.compile(r"[0-9a-f]{32}\Z")
_MAX_NAME = 128
_NEW = ".new."


@dataclass(frozen=True, slots=True)
class WorkspaceSnapshot:
    """A snapshot. `created_at` is in Unix seconds, `size_bytes` what its files take, `name` empty or what its maker
    called it, `workspace` the key of what it was taken of, `owner` whose it is; `kept` says that it outlives the
    sandbox."""

    snapshot_id: str
    name: str
    created_at: float
    size_bytes: int
    workspace: str
    owner: str = DEFAULT_OWNER
    kept: bool = True


class Snapshots:
    """Those in one directory. Calls block."""

    def __init__(self, directory: Path, ground: Ground) -> None:
        self._directory = directory
        self._ground = ground

    def take(
        self,
        source: Path,
        workspace: str,
        *,
        name: str = "",
        kept: bool = True,
        owner: str = DEFAULT_OWNER,
        told: Told | None = None,
    ) -> WorkspaceSnapshot:
        """Take one of a directory. Raises WorkspaceError; nothing is left then."""
        if len(name) > _MAX_NAME or not name.isprintable():
            raise WorkspaceError(
                f"{shown(name, 64)!r} cannot name a snapshot", hint=f"use at most {_MAX_NAME} printable characters"
            )
        snapshot_id = secrets.token_hex(16)
        # The name of its maker, so that what a killed one left can be told.
        new = self._directory / f"{_NEW}{owner_name()}.{snapshot_id}"
        note = new.with_name(f"{new.name}.json")
        try:
            size = self._ground.copy(source, new, 0, read_only=True, told=told)
            info = WorkspaceSnapshot(snapshot_id, name, time.time(), size, workspace, owner, kept)
            note.write_text(json.dumps(asdict(info)))
            os.rename(new, self._directory / snapshot_id)
            os.rename(note, self._note(snapshot_id))
        except OSError as error:
            self._undo(new, note, snapshot_id)
            raise WorkspaceError(
                f"the snapshot cannot be stored: {error.strerror}",
                hint=f"make room in {self._directory}",
                errno=error.errno,
            ) from error
        return info

    def _undo(self, new: Path, note: Path, snapshot_id: str) -> None:
        with contextlib.suppress(OSError, WorkspaceError):
            note.unlink(missing_ok=True)
        for left in (new, self._directory / snapshot_id):
            with contextlib.suppress(OSError, WorkspaceError):
                self._ground.remove(left)

    def sweep(self) -> None:
        """Remove what killed makers left. Does not raise."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self._directory):
                if name.startswith(_NEW) and is_dead(name.split(".")[2]):
                    new = self._directory / name.removesuffix(".json")
                    self._undo(new, new.with_name(f"{new.name}.json"), new.name.split(".")[3])

    def path(self, snapshot_id: str) -> Path:
        """The directory of one. Raises NotFoundError."""
        self.get(snapshot_id)
        return self._directory / snapshot_id

    def get(self, snapshot_id: str) -> WorkspaceSnapshot:
        """One, by its id. Raises NotFoundError."""
        found = self._read(snapshot_id) if _ID.match(snapshot_id) else None
        if found is None:
            raise _unknown(snapshot_id)
        return found

    def list(self, workspace: str | None = None) -> list[WorkspaceSnapshot]:
        """All of a workspace, or of every one, the newest first."""
        found = [info for info in self._all() if workspace is None or info.workspace == workspace]
        return sorted(found, key=lambda info: (info.created_at, info.snapshot_id), reverse=True)

    def delete(self, snapshot_id: str) -> None:
        """Remove one. Raises NotFoundError, also when another call removed it first."""
        self.get(snapshot_id)
        try:
            self._note(snapshot_id).unlink()
        except FileNotFoundError:
            raise _unknown(snapshot_id) from None
        self._ground.remove(self._directory / snapshot_id)

    def forget(self, workspace: str, *, all_of_them: bool = False) -> None:
        """Remove those of a workspace that go with it. Raises WorkspaceError."""
        for info in self._all():
            if info.workspace == workspace and (all_of_them or not info.kept):
                with contextlib.suppress(NotFoundError):
                    self.delete(info.snapshot_id)

    def expire(self, ttl_seconds: float) -> int:
        """Remove those that are older; returns how many. 0 is never."""
        old = [info for info in self._all() if ttl_seconds and info.created_at + ttl_seconds <= time.time()]
        for info in old:
            with contextlib.suppress(NotFoundError):
                self.delete(info.snapshot_id)
        return len(old)

    def _all(self) -> Iterator[WorkspaceSnapshot]:
        for name in os.listdir(self._directory):
            snapshot_id = name.removesuffix(".json")
            if snapshot_id != name and _ID.match(snapshot_id):
                found = self._read(snapshot_id)
                if found is not None:
                    yield found

    def _read(self, snapshot_id: str) -> WorkspaceSnapshot | None:
        try:
            found = json.loads(self._note(snapshot_id).read_bytes())
            return WorkspaceSnapshot(
                snapshot_id,
                str(found["name"]),
                float(found["created_at"]),
                int(found["size_bytes"]),
                str(found["workspace"]),
                str(found["owner"]),
                bool(found["kept"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _note(self, snapshot_id: str) -> Path:
        return self._directory / f"{snapshot_id}.json"


def _unknown(snapshot_id: str) -> NotFoundError:
    return NotFoundError(f"Unknown snapshot: {shown(snapshot_id, 64)}", hint="list those of the sandbox")
