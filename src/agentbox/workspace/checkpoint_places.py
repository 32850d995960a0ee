# SPDX-License-Identifier: MIT
"""Directories by absolute path, opened one name after the other and never through a link."""

from __future__ import annotations

import contextlib
import os
import stat

from agentbox.workspace.descent import chmod_no_follow

_PLACE = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNERS = 0o700
_MAX_OPEN = 64


def open_directory(path: str) -> int:
    """A descriptor of the directory at an absolute path, good for names in it. Raises OSError where a part is missing,
    a link, or no directory."""
    fd = os.open("/", _PLACE)
    try:
        for part in path.split("/"):
            if part:
                below = os.open(part, _PLACE, dir_fd=fd)
                os.close(fd)
                fd = below
    except OSError:
        os.close(fd)
        raise
    return fd


class Places:
    """Opens the directories that paths are in, one at a time, those above the next one only once.

    A directory that its owner closed is opened up where the owner asks, for searching or, if this one `writes`, for
    changes in it, and at the end it gets its mode again, unless it has another one by then. Use as a context manager.
    """

    def __init__(self, *, writes: bool = False) -> None:
        self._need = 0o300 if writes else 0o100
        # The way to the last one, from above: paths and descriptors.
        self._way: list[tuple[str, int]] = []
        self._opened_up: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *ending: object) -> None:
        self.forget()
        for path, (before, widened) in sorted(self._opened_up.items(), reverse=True):
            parent, _, name = path.rpartition("/")
            with contextlib.suppress(OSError):
                fd = open_directory(parent)
                try:
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == widened:
                        chmod_no_follow(fd, name, before)
                finally:
                    os.close(fd)

    def of(self, path: str) -> tuple[int, str]:
        """A descriptor of the directory that `path` is in, valid until the next call, and the last name. Raises
        OSError."""
        parent, _, name = path.rpartition("/")
        while self._way and not (parent + "/").startswith(self._way[-1][0] + "/"):
            os.close(self._way.pop()[1])
        if not self._way:
            self._way.append(("", os.open("/", _PLACE)))
        here, at = self._way[-1]
        for part in parent[len(here) :].split("/"):
            if not part:
                continue
            try:
                below = os.open(part, _PLACE, dir_fd=at)
            except PermissionError:
                self._open_up(at, here, 0o100)
                below = os.open(part, _PLACE, dir_fd=at)
            at, here = below, f"{here}/{part}"
            self._way.append((here, at))
            if len(self._way) > _MAX_OPEN:
                os.close(self._way.pop(0)[1])
        self._open_up(at, here, self._need)
        return at, name

    def forget(self) -> None:
        """Open the next one from the root: directories were put in other places."""
        while self._way:
            os.close(self._way.pop()[1])

    def _open_up(self, fd: int, path: str, need: int) -> None:
        status = os.fstat(fd)
        mode = stat.S_IMODE(status.st_mode)
        if mode & need != need and status.st_uid == os.geteuid() != 0:
            os.chmod(f"/proc/self/fd/{fd}", mode | _OWNERS)
            self._opened_up.setdefault(path, (mode, mode | _OWNERS))
