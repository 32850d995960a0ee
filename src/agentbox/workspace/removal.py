# SPDX-License-Identifier: MIT
"""Removing a directory that a guest filled, whatever it filled it with."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from dataclasses import dataclass, field

from agentbox.errors import WorkspaceError
from agentbox.workspace.descent import Descent
from agentbox.workspace.names import shown

_BATCH = 4096
_ATTEMPTS = 3


@dataclass(slots=True)
class _Failures:
    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, name: str, error: OSError) -> None:
        self.count += 1
        if len(self.first) < 3:
            self.first.append(f"{shown(name)}: {error.strerror}")


def remove_tree(parent_fd: int, name: str) -> None:
    """Remove `name` in `parent_fd` with all that is below; a name that is not there is no error.

    Depth, number and names do not matter, links are removed and never followed, directories without permissions are
    opened up first, other file systems mounted below are not entered, two descriptors are used. What cannot be removed
    is passed over; at the end a WorkspaceError names the first of it.
    """
    failures = _Failures()
    for _ in range(_ATTEMPTS):
        failures = _Failures()
        try:
            if _remove(parent_fd, name, failures):
                return
        except FileNotFoundError:
            # Something else is changing the tree; what it took away is gone, look at the rest again.
            continue
        except OSError as error:
            failures.add(name, error)
    raise WorkspaceError(
        f"{shown(name)}: {failures.count} entries could not be removed: {'; '.join(failures.first)}",
        hint="see who still uses the directory, then remove it by hand",
        failures=failures.count,
    )


def _remove(parent_fd: int, name: str, failures: _Failures) -> bool:
    if not _is_directory(parent_fd, name):
        return True
    place = Descent(parent_fd, need=0o700)
    try:
        place.enter(name)
        device = os.fstat(place.fd).st_dev
        pending = [_remove_files(place.fd, failures)]
        while pending:
            if pending[-1]:
                child = pending[-1].pop()
                try:
                    _enter_same_device(place, child, device)
                except OSError as error:
                    failures.add(child, error)
                else:
                    pending.append(_remove_files(place.fd, failures))
            else:
                pending.pop()
                left = place.leave()
                try:
                    os.rmdir(left, dir_fd=place.fd)
                except OSError as error:
                    failures.add(left, error)
    finally:
        place.close()
    return failures.count == 0


def _enter_same_device(place: Descent, name: str, device: int) -> None:
    """Enter a directory, unless something else is mounted there: that is not the guest's to lose."""
    place.enter(name)
    if os.fstat(place.fd).st_dev != device:
        place.leave()
        raise OSError(errno.EXDEV, "another file system is mounted there")


def _is_directory(parent_fd: int, name: str) -> bool:
    """Whether `name` is a directory; anything else is removed at once."""
    try:
        os.unlink(name, dir_fd=parent_fd)
    except FileNotFoundError:
        return False
    except OSError:
        status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            return True
        raise
    return False


def _remove_files(fd: int, failures: _Failures) -> list[str]:
    """Remove everything in `fd` that is no directory, in batches; returns the names of the directories."""
    directories: dict[str, None] = {}
    stuck: set[str] = set()
    while True:
        try:
            with os.scandir(fd) as entries:
                fresh = (e for e in entries if e.name not in directories and e.name not in stuck)
                batch = [(e.name, e.is_dir(follow_symlinks=False)) for e in itertools.islice(fresh, _BATCH)]
        except OSError as error:
            failures.add(".", error)
            return list(directories)
        if not batch:
            return list(directories)
        for name, is_directory in batch:
            if is_directory:
                directories[name] = None
                continue
            try:
                os.unlink(name, dir_fd=fd)
            except FileNotFoundError:
                pass
            except OSError as error:
                stuck.add(name)
                failures.add(name, error)
