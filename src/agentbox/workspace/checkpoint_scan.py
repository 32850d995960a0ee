# SPDX-License-Identifier: MIT
"""Walking what a run may write, by directory descriptors and never through a link."""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from agentbox.errors import CheckpointError
from agentbox.workspace.checkpoint_places import open_directory
from agentbox.workspace.descent import Descent
from agentbox.workspace.names import shown

MAX_ENTRIES = 2_000_000
_TYPE = 0o170000


@dataclass(frozen=True, slots=True)
class Scope:
    """What a checkpoint covers: everything at and below `roots`, absolute paths without links, none below another.

    `excluded` are paths that are left out with everything below them; `ignored` patterns of a project's own, for paths
    below `directory`, as snapback reads them. `identities` are device and inode of the roots when the run was prepared.
    """

    directory: str
    roots: tuple[str, ...]
    excluded: frozenset[str] = frozenset()
    ignored: tuple[str, ...] = ()
    identities: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class Found(NamedTuple):
    """One thing that a walk met: `name` in `dir_fd`, valid until the next step."""

    path: str
    dir_fd: int
    name: str
    status: os.stat_result


class Ignoring:
    """Whether a path is ignored: a pattern fits it, relative to the directory, or its last part."""

    def __init__(self, directory: str, patterns: tuple[str, ...]) -> None:
        self._prefix = directory.rstrip("/") + "/"
        text = "|".join(fnmatch.translate(os.path.normcase(pattern)) for pattern in patterns)
        self._match = re.compile(text).match if patterns else None

    def __call__(self, path: str, name: str) -> bool:
        """Whether the path, whose last part is `name`, is ignored."""
        if self._match is None or not path.startswith(self._prefix):
            return False
        return bool(self._match(name) or self._match(path[len(self._prefix) :]))


def outermost(paths: list[str]) -> tuple[str, ...]:
    """Those that lie below no other."""
    kept: list[str] = []
    for path in sorted(set(paths), key=lambda one: one.split("/")):
        if not any(path == other or path.startswith(other.rstrip("/") + "/") for other in kept):
            kept.append(path)
    return tuple(kept)


def walk(scope: Scope) -> Iterator[Found]:
    """Everything that the scope covers, parents first. What disappears meanwhile is passed over.

    Raises CheckpointError where a root is not what it was, something cannot be read, or there is too much.
    """
    ignoring = Ignoring(scope.directory, scope.ignored)
    seen = 0
    for root in scope.roots:
        parent, _, name = root.rpartition("/")
        try:
            parent_fd = open_directory(parent)
        except FileNotFoundError:
            _check_identity(scope, root, None)
            continue
        except OSError as error:
            raise unreadable(root, error) from error
        try:
            first = Found(root, parent_fd, name or ".", _lstat(parent_fd, name or "."))
            for found in _walk_root(first, scope, ignoring):
                seen += 1
                if seen > MAX_ENTRIES:
                    raise CheckpointError(
                        f"{shown(root)} holds more than {MAX_ENTRIES} files: no checkpoint of so many",
                        hint="let the policy grant writing to less",
                    )
                yield found
        except FileNotFoundError:
            _check_identity(scope, root, None)
        finally:
            os.close(parent_fd)


def _walk_root(root: Found, scope: Scope, ignoring: Ignoring) -> Iterator[Found]:
    _check_identity(scope, root.path, root.status)
    yield root
    if not stat.S_ISDIR(root.status.st_mode):
        return
    # Root needs no permission; whatever is widened would stay so if this process were killed.
    place = Descent(root.dir_fd, need=0 if os.geteuid() == 0 else 0o500)
    try:
        _enter(place, root.name, root.path)
        if root.path in scope.identities:
            _check_identity(scope, root.path, os.fstat(place.fd))
        here = root.path.rstrip("/")
        listed, names = _listed(place.fd, here, scope.excluded, ignoring)
        yield from listed
        pending = [(here, names)]
        while pending:
            here, names = pending[-1]
            if not names:
                pending.pop()
                if pending:
                    place.leave()
                continue
            name = names.pop()
            path = f"{here}/{name}"
            try:
                _enter(place, name, path)
            except FileNotFoundError:
                continue
            listed, names = _listed(place.fd, path, scope.excluded, ignoring)
            yield from listed
            pending.append((path, names))
    finally:
        place.close()


def _listed(fd: int, here: str, excluded: frozenset[str], ignoring: Ignoring) -> tuple[list[Found], list[str]]:
    """What is in a directory, and the names of the directories in it."""
    found = []
    below = []
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                name = entry.name
                path = f"{here}/{name}"
                if path in excluded or ignoring(path, name):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                found.append(Found(path, fd, name, status))
                if status.st_mode & _TYPE == 0o040000:
                    below.append(name)
    except OSError as error:
        raise unreadable(here, error) from error
    return found, below


def _enter(place: Descent, name: str, path: str) -> None:
    try:
        place.enter(name)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(path, error) from error


def _lstat(dir_fd: int, name: str) -> os.stat_result:
    return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)


def _check_identity(scope: Scope, root: str, status: os.stat_result | None) -> None:
    """A directory that was put in the place of the one which the box shows would be the wrong thing to save."""
    expected = scope.identities.get(root)
    if expected is None:
        return
    if status is None or (status.st_dev, status.st_ino) != expected:
        raise CheckpointError(
            f"{shown(root)} is not what it was when the run began: it was replaced",
            hint="start the run again, and let nothing replace what it may write",
            path=root,
        )


def unreadable(path: str, error: OSError) -> CheckpointError:
    """The error about a path that a checkpoint cannot keep."""
    return CheckpointError(
        f"{shown(path)} cannot be saved: {error.strerror or error}",
        hint="make it readable, or take it out of what the policy lets the run write",
        path=path,
        errno=error.errno,
    )
