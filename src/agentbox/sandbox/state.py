# SPDX-License-Identifier: MIT
"""Where sandboxes live on the host: `STATE/sandboxes/OWNER/NAME`, and `STATE/workspaces/NAME` for those that are kept.

The owner part tells a killed process's sandboxes from a living one's: they are removed at the next start.
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

from agentbox.errors import ConfigError, SandboxError, WorkspaceError
from agentbox.linux.cgroup_owners import is_dead, owner_name
from agentbox.records import dataclass
from agentbox.workspace.removal import remove_tree

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_NOTE = "sandbox.json"


@dataclass(frozen=True, slots=True)
class Place:
    """The directories of one sandbox. `kept` says whether the workspace outlives it."""

    name: str
    directory: Path
    workspace: Path
    kept: bool

    @property
    def spools(self) -> str:
        """Where long output goes."""
        return str(self.directory / "spools")


@dataclass(frozen=True, slots=True)
class Remnant:
    """A sandbox whose owner is dead: its name, when it began, and its backend."""

    name: str
    directory: Path
    started: str
    backend: str


class SandboxDirectories:
    """The directories of this process's sandboxes, and those of dead ones."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._all = state / "sandboxes"
        self._mine = self._all / owner_name()

    def make(self, backend: str, workspace: str | os.PathLike[str] | None) -> Place:
        """Directories of a new sandbox. `workspace` is None for one that goes with it, the name of a kept one, or an
        existing directory. Raises ConfigError, SandboxError."""
        name = f"agentbox-{secrets.token_hex(6)}"
        directory = self._mine / name
        try:
            directory.mkdir(parents=True, mode=0o700)
            for above in (self._all, self._mine):
                above.chmod(0o700)
            (directory / "spools").mkdir(mode=0o700)
            found, kept = self._workspace(directory, workspace)
            note = {"name": name, "backend": backend, "started": _now(), "workspace": str(found), "kept": kept}
            (directory / _NOTE).write_text(json.dumps(note))
        except OSError as error:
            raise ConfigError(
                f"the state directory {self._state} cannot be used: {error}",
                hint="set AGENTBOX_STATE_DIR to a directory that this user may write to",
            ) from error
        return Place(name, directory, found, kept)

    def _workspace(self, directory: Path, workspace: str | os.PathLike[str] | None) -> tuple[Path, bool]:
        if workspace is None:
            made = directory / "work"
            made.mkdir(mode=0o755)
            return made, False
        text = os.fspath(workspace)
        if os.sep not in text:
            if not _NAME.match(text):
                raise SandboxError(
                    f"workspace {text!r} is no name", hint="use letters, digits, `.`, `_`, `-`; or a path with a /"
                )
            kept = self._state / "workspaces"
            kept.mkdir(exist_ok=True, mode=0o700)
            (kept / text).mkdir(exist_ok=True, mode=0o755)
            return kept / text, True
        path = Path(text).resolve()
        if not path.is_dir():
            raise SandboxError(f"workspace {path} is no directory", hint="make it first, or give a name without a /")
        return path, True

    def remove(self, place: Place) -> None:
        """Remove a sandbox's directories but a kept workspace. Does not raise; what is left goes at the next start."""
        _remove(self._mine, place.name)
        with contextlib.suppress(OSError):
            self._mine.rmdir()

    def remnants(self) -> list[Remnant]:
        """Sandboxes of dead owners."""
        return [found for owner in self._dead() for found in _sandboxes_in(owner)]

    def sweep(self) -> list[Remnant]:
        """Remove what dead owners left; kept workspaces lie elsewhere. Does not raise."""
        found = self.remnants()
        for owner in self._dead():
            _remove(self._all, owner.name)
        return found

    def _dead(self) -> list[Path]:
        with contextlib.suppress(OSError), os.scandir(self._all) as entries:
            return [Path(entry.path) for entry in entries if is_dead(entry.name)]
        return []


def _sandboxes_in(owner: Path) -> Iterator[Remnant]:
    with contextlib.suppress(OSError), os.scandir(owner) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                # A workspace that waited for its sandbox.
                continue
            note = {}
            with contextlib.suppress(OSError, ValueError):
                note = json.loads(Path(entry.path, _NOTE).read_text())
            yield Remnant(entry.name, Path(entry.path), str(note.get("started", "?")), str(note.get("backend", "?")))


def _remove(parent: Path, name: str) -> None:
    with contextlib.suppress(OSError, WorkspaceError):
        fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            remove_tree(fd, name)
        finally:
            os.close(fd)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
