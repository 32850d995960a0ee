# SPDX-License-Identifier: MIT
"""Where sandboxes live on the host: `STATE/sandboxes/OWNER/NAME`; their workspaces are of workspace.volumes.

The owner part tells a killed process's sandboxes from a living one's: they are removed at the next start.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from agentbox.errors import AgentboxError, ConfigError, SandboxError, WorkspaceError
from agentbox.linux.cgroup_owners import is_dead, owner_name
from agentbox.records import dataclass
from agentbox.workspace.removal import remove_tree
from agentbox.workspace.volumes import Volumes, Workspace

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_NOTE = "sandbox.json"


@dataclass(frozen=True, slots=True)
class Place:
    """The directories of one sandbox. `kept` says whether the workspace outlives it; `files` is what is known of the
    workspace, None for a directory that the caller named."""

    name: str
    directory: Path
    workspace: Path
    kept: bool
    files: Workspace | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether the workspace is new with the sandbox, so that another like it does as well."""
        return self.files is not None and not self.kept

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
    """The directories of this process's sandboxes, and those of dead ones. `volumes` is where workspaces lie, and
    `make_files` makes the one of a sandbox of that name; both are to be set before `make`."""

    def __init__(self, state: Path) -> None:
        self.volumes: Volumes | None = None
        self.make_files: Callable[[str], Workspace] | None = None
        self._state = state
        self._all = state / "sandboxes"
        self._mine = self._all / owner_name()

    def make(self, backend: str, workspace: str | os.PathLike[str] | None) -> Place:
        """Directories of a new sandbox. `workspace` is None for one that goes with it, the name of a kept one, or an
        existing directory. Raises ConfigError, SandboxError, WorkspaceError, NotFoundError."""
        name = f"agentbox-{secrets.token_hex(6)}"
        directory = self._mine / name
        try:
            directory.mkdir(parents=True, mode=0o700)
            for above in (self._all, self._mine):
                above.chmod(0o700)
            (directory / "spools").mkdir(mode=0o700)
            place = self._place(name, directory, workspace)
            note = {
                "name": name,
                "backend": backend,
                "started": _now(),
                "workspace": str(place.workspace),
                "kept": place.kept,
            }
            (directory / _NOTE).write_text(json.dumps(note))
        except OSError as error:
            raise ConfigError(
                f"the state directory {self._state} cannot be used: {error}",
                hint="set AGENTBOX_STATE_DIR to a directory that this user may write to",
            ) from error
        except BaseException:
            _remove(self._mine, name)
            raise
        return place

    def _place(self, name: str, directory: Path, workspace: str | os.PathLike[str] | None) -> Place:
        if workspace is not None and os.sep in os.fspath(workspace):
            path = Path(workspace).resolve()
            if not path.is_dir():
                raise SandboxError(
                    f"workspace {path} is no directory", hint="make it first, or give a name without a /"
                )
            return Place(name, directory, path, kept=True)
        assert self.make_files is not None
        files = self.make_files(name)
        return Place(name, directory, files.path, files.kept, files)

    def remove(self, place: Place) -> None:
        """Remove a sandbox's directories but a kept workspace. Does not raise; what is left goes at the next start."""
        if place.files is not None and not place.kept and self.volumes is not None:
            with contextlib.suppress(AgentboxError, OSError):
                self.volumes.remove(place.files)
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
        if self.volumes is not None:
            self.volumes.sweep()
        return found

    def sweep_and_make(self, backend: str, workspace: str | os.PathLike[str] | None) -> Place:
        """Both, one after the other."""
        self.sweep()
        return self.make(backend, workspace)

    def _dead(self) -> list[Path]:
        with contextlib.suppress(OSError), os.scandir(self._all) as entries:
            return [Path(entry.path) for entry in entries if is_dead(entry.name)]
        return []


def check_name(name: str) -> str:
    """The name of a workspace, as it is. Raises SandboxError."""
    if not _NAME.match(name):
        raise SandboxError(
            f"workspace {name!r} is no name", hint="use letters, digits, `.`, `_`, `-`; or a path with a /"
        )
    return name


def _sandboxes_in(owner: Path) -> Iterator[Remnant]:
    with contextlib.suppress(OSError), os.scandir(owner) as entries:
        for entry in entries:
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
