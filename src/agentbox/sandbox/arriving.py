# SPDX-License-Identifier: MIT
"""A large file that the host writes into a workspace itself, where its agent would only cost time.

It has no name until it is whole, and then takes its name at once. Nothing that a guest has made leads anywhere: every
directory on the way is opened in its parent and is no link. Where the guest itself could not write, or where something
needs its view of things, such as a link, `ArrivingFile.open` gives None, and the agent is to be asked. Calls block.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Self

from agentbox.isolation.durable import HOME, WORKSPACE

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTER, _CHANGE = 0o100, 0o300
_NEW_DIRECTORY_MODE = 0o755
_NEW_FILE_MODE = 0o644


def parts_inside(path: str) -> list[str] | None:
    """The names of an absolute path of a box below its workspace, None where it is not below it."""
    for top in (WORKSPACE, HOME):
        if path.startswith(f"{top}/"):
            parts = path[len(top) + 1 :].split("/")
            return None if any(part in ("", ".", "..") for part in parts) else parts
    return None


class ArrivingFile:
    """Made by `open`. `fd` is where its bytes go; then `commit`, and in any case `close`."""

    def __init__(self, fd: int, directory: int, name: str, mode: int) -> None:
        self.fd = fd
        self._directory = directory
        self._name = name
        self._mode = mode

    @classmethod
    def open(cls, workspace: Path, parts: list[str], mode: int | None) -> Self | None:
        """A file for that place in the workspace, whose parents are made; `mode` as of Files.write. None where the
        agent is to be asked."""
        with contextlib.suppress(OSError):
            directory = _parent(workspace, parts[:-1])
            if directory is None:
                return None
            try:
                bits = _mode(directory, parts[-1], mode)
                if bits is not None:
                    fd = os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=directory)
                    kept, directory = directory, -1
                    return cls(fd, kept, parts[-1], bits)
            finally:
                if directory >= 0:
                    os.close(directory)
        return None

    def commit(self) -> None:
        """Give it its name, over a file that has it. Raises OSError."""
        os.fchmod(self.fd, self._mode)
        beside = f".{self._name[:200]}.agentbox-{secrets.token_hex(6)}"
        source = f"/proc/self/fd/{self.fd}"
        os.link(source, beside, dst_dir_fd=self._directory, follow_symlinks=True)
        try:
            os.rename(beside, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(beside, dir_fd=self._directory)
            raise

    def close(self) -> None:
        """Without a name it is gone now."""
        os.close(self.fd)
        os.close(self._directory)


def _parent(workspace: Path, parts: list[str]) -> int | None:
    """A descriptor of the directory, made where it is not there. None where the guest could not. Raises OSError."""
    fd = os.open(workspace, _DIRECTORY)
    try:
        for part in parts:
            if not _may(fd, _ENTER):
                return None
            try:
                below = os.open(part, _DIRECTORY, dir_fd=fd)
            except FileNotFoundError:
                if not _may(fd, _CHANGE):
                    return None
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, _NEW_DIRECTORY_MODE, dir_fd=fd)
                below = os.open(part, _DIRECTORY, dir_fd=fd)
            fd, above = below, fd
            os.close(above)
        if not _may(fd, _CHANGE):
            return None
        found, fd = fd, -1
        return found
    finally:
        if fd >= 0:
            os.close(fd)


def _may(fd: int, bits: int) -> bool:
    """Whether it is ours, as all is that the guest makes, and its owner may do that."""
    status = os.fstat(fd)
    return status.st_uid == os.geteuid() and status.st_mode & bits == bits


def _mode(directory: int, name: str, mode: int | None) -> int | None:
    """The permission bits that the file will have, None where what has its name is no file that the guest may write."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return _NEW_FILE_MODE if mode is None else mode & 0o777
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or not status.st_mode & stat.S_IWUSR:
        return None
    return status.st_mode & 0o777 if mode is None else mode & 0o777
