# SPDX-License-Identifier: MIT
"""Workspace directories on the host, for backends that need one, below the state directory and named by owner."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from agentbox.errors import ConfigError
from agentbox.linux import mounts
from agentbox.linux.cgroup_owners import is_dead, owner_name
from agentbox.workspace.removal import remove_tree


class Directories:
    """`<state>/boxes/<owner>/<box>/{work,tmp}`; the owner part tells a killed server's from a living one's."""

    def __init__(self, state_dir: Path) -> None:
        self._boxes = state_dir / "boxes"
        self._mine = self._boxes / owner_name()

    def open(self) -> None:
        """Make the owner's directory and remove those of dead owners. Raises ConfigError."""
        try:
            self._mine.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(
                f"the state directory {self._boxes.parent} cannot be used: {error.strerror}",
                hint="set AGENTBOX_STATE_DIR to a directory that this user may write to",
            ) from error
        for entry in os.scandir(self._boxes):
            if is_dead(entry.name):
                self._unmount(entry.path)
                self._remove(self._boxes, entry.name)

    def make(self) -> Path:
        """A new box's directory, with `work` and `tmp` in it."""
        box = self._mine / secrets.token_hex(8)
        box.mkdir(mode=0o700)
        (box / "work").mkdir()
        (box / "tmp").mkdir()
        return box

    def remove(self, box: Path) -> None:
        """Remove a box's directory, whatever is in it. Does not raise; what is left goes at the next start."""
        self._remove(self._mine, box.name)

    def close(self) -> None:
        """Remove the owner's directory."""
        self._remove(self._boxes, self._mine.name)

    @staticmethod
    def _unmount(path: str) -> None:
        """Take away the file systems that a killed owner's boxes had."""
        with contextlib.suppress(OSError):
            for point in mounts.below(path):
                mounts.detach(point)

    @staticmethod
    def _remove(parent: Path, name: str) -> None:
        with contextlib.suppress(Exception):
            fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                remove_tree(fd, name)
            finally:
                os.close(fd)
