# SPDX-License-Identifier: MIT
"""Moving through a guest's tree by directory descriptors, one component at a time, never through a link.

Every component is opened with O_NOFOLLOW relative to the descriptor of its parent, which is right on every kernel and
against every swap of a directory for a link. At most two descriptors are open however deep the tree is.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agentbox.workspace.names import MAX_DEPTH, MAX_PATH_BYTES, shown

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class EntryLimitError(Exception):
    """A walk met more entries than it was allowed to."""


def chmod_no_follow(dir_fd: int, name: str, mode: int) -> None:
    """Set the mode of a file or directory; a link is refused or changed itself, never followed. Raises OSError."""
    if not hasattr(os, "O_PATH"):
        os.chmod(name, mode, dir_fd=dir_fd, follow_symlinks=False)
        return
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        os.chmod(f"/proc/self/fd/{fd}", mode)
    finally:
        os.close(fd)


def _open_unlocked(dir_fd: int, name: str, flags: int, need: int) -> tuple[int, int | None]:
    """Open with the owner's bits `need`, added if missing; the second value is the mode to give back later."""
    try:
        fd = os.open(name, flags, dir_fd=dir_fd)
    except PermissionError:
        mode = stat.S_IMODE(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
        if mode & need == need:
            raise
        chmod_no_follow(dir_fd, name, mode | need)
        return os.open(name, flags, dir_fd=dir_fd), mode
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if flags & os.O_DIRECTORY and mode & need != need:
        with contextlib.suppress(PermissionError):
            os.fchmod(fd, mode | need)
            return fd, mode
    return fd, None


def open_regular(dir_fd: int, name: str) -> int:
    """A descriptor of a regular file, also of one that its owner may not read. Raises OSError.

    Never waits (a FIFO) and never follows; the caller has seen by lstat that it is no device.
    """
    fd, mode = _open_unlocked(dir_fd, name, _FILE, 0o400)
    if mode is not None:
        os.fchmod(fd, mode)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{shown(name)} is not a regular file any more")
    return fd


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    identity: tuple[int, int]
    mode_before: int | None


class Descent:
    """A position in the tree below `base_fd`. `need` is what the owner must be allowed in each directory.

    Modes that had to be widened are given back on `leave`. All methods raise OSError.
    """

    def __init__(self, base_fd: int, need: int = 0o500) -> None:
        self._base = base_fd
        self._need = need
        self._steps: list[_Step] = []
        self.fd = base_fd

    @property
    def depth(self) -> int:
        """Directories below the base."""
        return len(self._steps)

    def enter(self, name: str) -> None:
        """Go into the directory `name`; NotADirectoryError or ELOOP for anything else, a link included."""
        fd, mode = _open_unlocked(self.fd, name, _DIRECTORY, self._need)
        status = os.fstat(fd)
        self._steps.append(_Step(name, (status.st_dev, status.st_ino), mode))
        self._move_to(fd)

    def leave(self) -> str:
        """Go back to the parent directory and return the name of the one that was left."""
        step = self._steps.pop()
        left = self.fd
        try:
            above = self._open_above()
        except OSError:
            self._steps.append(step)
            raise
        if step.mode_before is not None:
            with contextlib.suppress(OSError):
                os.fchmod(left, step.mode_before)
        self._move_to(above)
        return step.name

    def close(self) -> None:
        """Give back every mode that was widened and close; never raises."""
        try:
            while self._steps:
                self.leave()
        except OSError:
            self._steps.clear()
            self._move_to(self._base)

    def _move_to(self, fd: int) -> None:
        if self.fd != self._base:
            os.close(self.fd)
        self.fd = fd

    def _open_above(self) -> int:
        if not self._steps:
            return self._base
        fd = os.open("..", _DIRECTORY, dir_fd=self.fd)
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) == self._steps[-1].identity:
            return fd
        # The directory was moved while we were in it, so '..' leads elsewhere: come again from the base.
        os.close(fd)
        fd = self._base
        for step in self._steps:
            below = os.open(step.name, _DIRECTORY, dir_fd=fd)
            if fd != self._base:
                os.close(fd)
            fd = below
        return fd


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing met by `walk`: `path` from the base, and `name` in `dir_fd`, valid until the next step."""

    path: str
    name: str
    dir_fd: int
    status: os.stat_result


def walk(
    base_fd: int, *, limit: int, warn: Callable[[str], None], descend: Callable[[Entry], bool] = lambda _: True
) -> Iterator[Entry]:
    """Every entry below `base_fd`, parents first, sorted by name, to at most 64 levels and 4096 bytes of path.

    `descend` says which directories to enter. What cannot be entered is told to `warn`. Raises EntryLimitError at the
    first entry over `limit`, OSError when the base itself cannot be read.
    """
    with _reopened(base_fd) as own_fd:
        yield from _walk(own_fd, limit, warn, descend)


@contextlib.contextmanager
def _reopened(base_fd: int) -> Iterator[int]:
    """The same directory with a reading position of its own, opened up while it is used if its owner closed it."""
    mode = stat.S_IMODE(os.fstat(base_fd).st_mode)
    if mode & 0o500 != 0o500:
        with contextlib.suppress(OSError):
            os.fchmod(base_fd, mode | 0o500)
    try:
        fd = os.open(".", _DIRECTORY, dir_fd=base_fd)
        try:
            yield fd
        finally:
            os.close(fd)
    finally:
        if mode & 0o500 != 0o500:
            with contextlib.suppress(OSError):
                os.fchmod(base_fd, mode)


def _walk(base_fd: int, limit: int, warn: Callable[[str], None], descend: Callable[[Entry], bool]) -> Iterator[Entry]:
    place = Descent(base_fd)
    seen = 0
    try:
        pending = [("", iter(_listing(base_fd, limit)))]
        while pending:
            prefix, names = pending[-1]
            name = next(names, None)
            if name is None:
                pending.pop()
                if pending:
                    place.leave()
                continue
            seen += 1
            if seen > limit:
                raise EntryLimitError
            try:
                status = os.stat(name, dir_fd=place.fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            entry = Entry(prefix + name, name, place.fd, status)
            if len(os.fsencode(entry.path)) > MAX_PATH_BYTES:
                warn(f"{shown(entry.path)}: left out, its path is over {MAX_PATH_BYTES} bytes")
                continue
            yield entry
            if not stat.S_ISDIR(status.st_mode) or not descend(entry):
                continue
            if place.depth + 1 >= MAX_DEPTH:
                warn(f"{shown(entry.path)}: its content is left out, it is over {MAX_DEPTH} levels deep")
                continue
            try:
                place.enter(name)
            except OSError as error:
                warn(f"{shown(entry.path)}: its content is left out: {error.strerror}")
                continue
            try:
                pending.append((entry.path + "/", iter(_listing(place.fd, limit - seen))))
            except OSError as error:
                place.leave()
                warn(f"{shown(entry.path)}: its content is left out: {error.strerror}")
    finally:
        place.close()


def _listing(fd: int, limit: int) -> list[str]:
    with os.scandir(fd) as entries:
        return sorted(entry.name for entry in itertools.islice(entries, limit + 1))


class Parents:
    """Opens, and makes, the directories on the way to a file below `base_fd`; new ones have mode 0755.

    `made` is called before each new directory, and may raise to stop. Use as a context manager.
    """

    def __init__(self, base_fd: int, made: Callable[[], None] = lambda: None) -> None:
        self._base = base_fd
        self._made = made
        self._parts: tuple[str, ...] = ()
        self._fd = base_fd

    def __enter__(self) -> Parents:
        return self

    def __exit__(self, *_: object) -> None:
        self._move_to(self._base, ())

    def at(self, parts: tuple[str, ...]) -> int:
        """A descriptor of the directory `parts`, valid until the next call.

        Raises NotADirectoryError or OSError(ELOOP) when a component is a link or no directory, other OSErrors.
        """
        if parts == self._parts:
            return self._fd
        common = len(self._parts)
        if parts[:common] == self._parts:
            fd, rest = self._fd, parts[common:]
        else:
            self._move_to(self._base, ())
            fd, rest = self._base, parts
        for index, part in enumerate(rest, len(parts) - len(rest) + 1):
            fd = self._step(fd, part)
            self._move_to(fd, parts[:index])
        return fd

    def _step(self, dir_fd: int, part: str) -> int:
        try:
            return os.open(part, _DIRECTORY, dir_fd=dir_fd)
        except FileNotFoundError:
            self._made()
            os.mkdir(part, 0o755, dir_fd=dir_fd)
        fd = os.open(part, _DIRECTORY, dir_fd=dir_fd)
        with contextlib.suppress(PermissionError):
            # The umask may have taken bits away.
            os.fchmod(fd, 0o755)
        return fd

    def _move_to(self, fd: int, parts: tuple[str, ...]) -> None:
        if self._fd not in (self._base, fd):
            os.close(self._fd)
        self._fd, self._parts = fd, parts
