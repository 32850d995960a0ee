# SPDX-License-Identifier: MIT
"""What a container shows of a workspace under a policy: mounts, and a bare directory that they stand in."""

from __future__ import annotations

import contextlib
import os
import stat

from agentbox.isolation.plan import WORKSPACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentbox.isolation.plan import WorkspaceView

    Bind = tuple[str, str, bool]

_BELOW = f"{WORKSPACE}/"


class Showing:
    """Of the directory `work` below `fd`, whose path is `directory`. Nothing of the guest's runs meanwhile."""

    def __init__(self, fd: int, directory: str) -> None:
        self._fd = fd
        self._directory = directory
        self._bare = False

    def binds(self, view: WorkspaceView) -> tuple[Bind, ...]:
        """(source, target, writable) of every mount. A link is never followed: what is behind one is not shown. Raises
        OSError."""
        shown = dict(view.shown)
        whole = shown.pop(WORKSPACE, None)
        self._bare = whole is None
        if self._bare:
            os.mkdir("bare", 0o755, dir_fd=self._fd)
        base = (f"{self._directory}/{'bare' if self._bare else 'work'}", WORKSPACE, bool(whole))
        granted = list(self._mounts(shown.items()))
        covered = [target for _, target, _ in granted] if self._bare else [WORKSPACE]
        narrower = [(path, False) for path in view.read_only if _is_below_one(path, covered)]
        hidden = [path for path in view.hidden if _is_below_one(path, covered)]
        return (base, *granted, *self._mounts(narrower), *self._nothing(hidden))

    def _mounts(self, paths: Iterable[tuple[str, bool]]) -> Iterable[Bind]:
        for path, writable in paths:
            mode = self._mode(path)
            if mode is None:
                continue
            if self._bare:
                self._stand_in(path, directory=stat.S_ISDIR(mode))
            yield f"{self._directory}/work/{path[len(_BELOW) :]}", path, writable

    def _nothing(self, paths: Iterable[str]) -> Iterable[Bind]:
        for path in paths:
            mode = self._mode(path)
            if mode is None:
                continue
            name = "no-directory" if stat.S_ISDIR(mode) else "no-file"
            with contextlib.suppress(FileExistsError):
                if name == "no-directory":
                    os.mkdir(name, 0, dir_fd=self._fd)
                else:
                    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0, dir_fd=self._fd))
            yield f"{self._directory}/{name}", path, False

    def _mode(self, path: str) -> int | None:
        """The kind of what is there, None for a link, for what is behind one, and for nothing."""
        mode = None
        if path.startswith(_BELOW):
            parts = path[len(_BELOW) :].split("/")
            for length in range(1, len(parts) + 1):
                try:
                    mode = os.lstat("/".join(("work", *parts[:length])), dir_fd=self._fd).st_mode
                except OSError:
                    return None
                if stat.S_ISLNK(mode):
                    return None
        return mode

    def _stand_in(self, path: str, *, directory: bool) -> None:
        """Something for a mount to be put upon."""
        *above, last = path[len(_BELOW) :].split("/")
        place = "bare"
        for part in above:
            place = f"{place}/{part}"
            with contextlib.suppress(FileExistsError):
                os.mkdir(place, 0o755, dir_fd=self._fd)
        with contextlib.suppress(FileExistsError, NotADirectoryError):
            if directory:
                os.mkdir(f"{place}/{last}", 0o755, dir_fd=self._fd)
            else:
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
                os.close(os.open(f"{place}/{last}", flags, 0o444, dir_fd=self._fd))


def _is_below_one(path: str, covered: Iterable[str]) -> bool:
    return any(path == one or path.startswith(f"{one}/") for one in covered)
