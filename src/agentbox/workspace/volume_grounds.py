# SPDX-License-Identifier: MIT
"""What workspaces are made of: subvolumes, which are copied at once and held to a size, or plain directories."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from agentbox.errors import WorkspaceError
from agentbox.linux import btrfs
from agentbox.workspace.copying import copy_tree
from agentbox.workspace.faults import FULL
from agentbox.workspace.removal import remove_tree

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
Told = Callable[[int], None]


class Ground(Protocol):
    """Makes, copies and removes directories that guests fill. Calls block and raise WorkspaceError."""

    @property
    def held(self) -> bool:
        """Whether a limit is held."""

    def make(self, path: Path, limit_bytes: int) -> None:
        """An empty directory, mode 0755, whose parent is there."""

    def copy(
        self, source: Path, path: Path, limit_bytes: int, *, read_only: bool = False, told: Told | None = None
    ) -> int:
        """A copy of what is in a directory; returns its size in bytes. `told` hears how many bytes are done where that
        takes time; `read_only` where that can be had."""

    def limit(self, path: Path, limit_bytes: int) -> None:
        """Change the limit of one that is there; 0 is none."""

    def remove(self, path: Path) -> None:
        """With all that is in it; one that is not there is no error."""


class Subvolumes:
    """A mounted btrfs."""

    held = True

    def make(self, path: Path, limit_bytes: int) -> None:
        """See Ground."""
        with _Parent(path, "made") as parent:
            btrfs.create(parent, path.name)
            self._begin(parent, path, limit_bytes)

    def copy(
        self, source: Path, path: Path, limit_bytes: int, *, read_only: bool = False, told: Told | None = None
    ) -> int:
        """See Ground."""
        with _Parent(path, "copied") as parent:
            from_fd = os.open(source, _DIRECTORY)
            try:
                if btrfs.is_subvolume(from_fd):
                    btrfs.snapshot(parent, path.name, from_fd, read_only=read_only)
                    return self._begin(parent, path, limit_bytes)
            finally:
                os.close(from_fd)
        # A directory of the host's own.
        self.make(path, limit_bytes)
        return _filled(self, source, path, told)

    def limit(self, path: Path, limit_bytes: int) -> None:
        """See Ground."""
        with _Parent(path, "limited"):
            self._finish(path, limit_bytes)

    def _begin(self, parent: int, path: Path, limit_bytes: int) -> int:
        try:
            return self._finish(path, limit_bytes)
        except BaseException:
            # One that no limit holds must not be.
            btrfs.destroy(parent, path.name)
            raise

    def _finish(self, path: Path, limit_bytes: int) -> int:
        fd = os.open(path, _DIRECTORY)
        try:
            btrfs.limit(fd, limit_bytes)
            return btrfs.referenced_bytes(fd)
        finally:
            os.close(fd)

    def remove(self, path: Path) -> None:
        """See Ground."""
        with _Parent(path, "removed") as parent:
            try:
                fd = os.open(path.name, _DIRECTORY, dir_fd=parent)
            except FileNotFoundError:
                return
            try:
                whole = btrfs.is_subvolume(fd)
            finally:
                os.close(fd)
            if whole:
                btrfs.destroy(parent, path.name)
            else:
                remove_tree(parent, path.name)


class Directories:
    """Directories of any file system; files are shared until they are changed where it can do that."""

    held = False

    def make(self, path: Path, limit_bytes: int) -> None:
        """See Ground."""
        del limit_bytes
        with _Parent(path, "made") as parent:
            os.mkdir(path.name, 0o755, dir_fd=parent)

    def copy(
        self, source: Path, path: Path, limit_bytes: int, *, read_only: bool = False, told: Told | None = None
    ) -> int:
        """See Ground."""
        del read_only
        self.make(path, limit_bytes)
        return _filled(self, source, path, told)

    def limit(self, path: Path, limit_bytes: int) -> None:
        """See Ground."""

    def remove(self, path: Path) -> None:
        """See Ground."""
        with _Parent(path, "removed") as parent:
            remove_tree(parent, path.name)


def _filled(ground: Ground, source: Path, path: Path, told: Told | None) -> int:
    try:
        with _Parent(path, "copied"):
            return copy_tree(source, path, told)
    except BaseException:
        ground.remove(path)
        raise


class _Parent:
    """The open directory above a path; an OSError inside is told as what could not be done to the path."""

    def __init__(self, path: Path, done: str) -> None:
        self._path = path
        self._done = done
        self._fd = -1

    def __enter__(self) -> int:
        try:
            self._fd = os.open(self._path.parent, _DIRECTORY)
        except OSError as error:
            raise self._fault(error) from error
        return self._fd

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        os.close(self._fd)
        if isinstance(error, OSError):
            raise self._fault(error) from error

    def _fault(self, error: OSError) -> WorkspaceError:
        full = error.errno in FULL
        return WorkspaceError(
            f"the workspace {self._path.name} cannot be {self._done}: {error.strerror or error}",
            hint="remove workspaces and snapshots that are not needed, or raise AGENTBOX_WORKSPACE_VOLUMES_MB"
            if full
            else f"look at {self._path.parent}",
            errno=error.errno or 0,
        )
