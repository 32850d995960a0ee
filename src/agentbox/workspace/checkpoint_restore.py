# SPDX-License-Identifier: MIT
"""Bringing paths from one state to another: the undoing of what a run changed, and of an undoing.

Only paths that the run changed are touched, and of those only the ones that are still as it left them; what somebody
changed since is a conflict. Paths are walked from the root without following a link. Every step can be broken off: what
was done already is seen as done the next time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from agentbox.errors import CheckpointError
from agentbox.workspace.checkpoint_content import ContentReader
from agentbox.workspace.checkpoint_entries import KINDS, TOUCHED, Change, Entry, is_same
from agentbox.workspace.checkpoint_places import Places
from agentbox.workspace.checkpoint_plan import look
from agentbox.workspace.checkpoint_reading import xattrs_of
from agentbox.workspace.descent import chmod_no_follow

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_HANDLE = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC
_IN_PLACE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
TEMPORARY = ".agentbox-undo-"
_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)


@dataclass(slots=True)
class Restored:
    """What was done: `paths` with the letter of each (A made, M changed, D removed), `left` with why."""

    paths: list[tuple[str, str]] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)


def times_around(steps: Iterable[Change]) -> dict[str, int]:
    """When the directories were changed in which something will be, and which are no step themselves."""
    paths = {change.path for change in steps}
    found = {}
    with Places() as places:
        for path in {path.rpartition("/")[0] for path in paths} - paths - {""}:
            with contextlib.suppress(OSError):
                fd, name = places.of(path)
                found[path] = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime_ns
    return found


def restore(
    steps: Iterable[Change], reader: ContentReader, known: Mapping[str, Entry], times: Mapping[str, int]
) -> Restored:
    """Do the steps of a plan. `known` are states of paths that may share a file (hard links) with what is restored,
    `times` what `times_around` gave.

    What cannot be done is `left`; the rest is done. Raises CheckpointError before anything is changed where a content
    is not whole.
    """
    ordered = sorted(steps, key=lambda change: change.path.split("/"))
    for change in ordered:
        if change.after is not None and change.after.kind == "f" and not _has_content(change):
            reader.check(change.path, change.after)
    with Places(writes=True) as places:
        return _Restoring(ordered, reader, known, places).all(times)


def _has_content(change: Change) -> bool:
    """Whether the content is right already, and only permissions or times are not."""
    before, after = change.before, change.after
    return (
        before is not None
        and after is not None
        and before.kind == after.kind == "f"
        and (before.content, before.size) == (after.content, after.size)
    )


class _Restoring:
    """The steps of one plan while they are done."""

    def __init__(
        self, ordered: list[Change], reader: ContentReader, known: Mapping[str, Entry], places: Places
    ) -> None:
        self._ordered = ordered
        self._reader = reader
        self._places = places
        self._left: dict[str, str] = {}
        # Names of files that have several, by device and inode: as they were, and as they were made again.
        self._names: dict[tuple[int, int], list[tuple[str, Entry]]] = {}
        self._made: dict[tuple[int, int], str] = {}
        wanted = {
            (one.device, one.inode)
            for step in ordered
            if (one := step.after) is not None and one.kind == "f" and one.links > 1
        }
        for path, entry in known.items() if wanted else ():
            if (entry.device, entry.inode) in wanted:
                self._names.setdefault((entry.device, entry.inode), []).append((path, entry))

    def all(self, times: Mapping[str, int]) -> Restored:
        """Do everything: away with what must go, from below; then what must come, from above; at last modes and times
        of directories."""
        for change in reversed(self._ordered):
            if change.before is not None and (change.after is None or change.after.kind != change.before.kind):
                self._attempt(change.path, self._remove, change)
        for change in self._ordered:
            if change.after is not None and change.path not in self._left:
                self._attempt(change.path, self._make, change, change.after)
        for change in reversed(self._ordered):
            if change.after is not None and change.after.kind == "d" and change.path not in self._left:
                self._attempt(change.path, self._finish, change.path, change.after)
        for path, mtime in times.items():
            with contextlib.suppress(OSError):
                fd, name = self._places.of(path)
                os.utime(name, ns=(mtime, mtime), dir_fd=fd, follow_symlinks=False)
        done = [
            (change.status, change.path)
            for change in self._ordered
            if change.path not in self._left and change.status != TOUCHED
        ]
        return Restored(done, list(self._left.items()))

    def _attempt(self, path: str, action: Callable[..., None], *arguments: object) -> None:
        try:
            action(*arguments)
        except OSError as error:
            self._left.setdefault(path, error.strerror or str(error))
        except CheckpointError as error:
            self._left.setdefault(path, error.message)

    def _remove(self, change: Change) -> None:
        assert change.before is not None
        fd, name = self._places.of(change.path)
        try:
            if change.before.kind == "d":
                os.rmdir(name, dir_fd=fd)
            else:
                os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno in _NOT_EMPTY:
                raise CheckpointError("something else is in it") from error
            raise

    def _make(self, change: Change, entry: Entry) -> None:
        same_kind = change.before is not None and change.before.kind == entry.kind
        fd, name = self._places.of(change.path)
        if entry.kind == "d":
            if not same_kind:
                # Its real mode comes when everything is in it.
                os.mkdir(name, 0o700, dir_fd=fd)
            return
        if entry.kind == "f":
            if same_kind and _has_content(change):
                _give(fd, name, entry)
            else:
                self._make_file(fd, name, change, entry)
            return
        if same_kind:
            os.unlink(name, dir_fd=fd)
        if entry.kind == "l":
            os.symlink(entry.content, name, dir_fd=fd)
        elif entry.kind == "p":
            os.mkfifo(name, 0o600, dir_fd=fd)
        elif entry.kind == "s":
            raise CheckpointError("a socket cannot be brought back: start what made it again")
        else:
            kind = 0o020000 if entry.kind == "c" else 0o060000
            os.mknod(name, kind | 0o600, int(entry.content), dir_fd=fd)
        _give(fd, name, entry)

    def _finish(self, path: str, entry: Entry) -> None:
        fd, name = self._places.of(path)
        _give(fd, name, entry)

    def _make_file(self, fd: int, name: str, change: Change, entry: Entry) -> None:
        """Put a file there: as a further name of one that is there again, else with its content."""
        key = (entry.device, entry.inode)
        if entry.links > 1 and (other := self._made.get(key) or self._unchanged(key, change.path)):
            here = os.dup(fd)
            try:
                other_fd, other_name = self._places.of(other)
                _replace(
                    here,
                    name,
                    lambda new: os.link(other_name, new, src_dir_fd=other_fd, dst_dir_fd=here, follow_symlinks=False),
                )
            finally:
                os.close(here)
            return
        now = change.before
        if now is not None and now.kind == "f" and now.links > 1 and (now.device, now.inode) == key:
            # Its other names, which may lie anywhere, are to have this content too.
            self._write_in_place(fd, name, change.path, entry)
        else:
            _replace(fd, name, lambda new: self._write_new(fd, new, change.path, entry))
        self._made[key] = change.path

    def _unchanged(self, key: tuple[int, int], path: str) -> str | None:
        """Another name of the same file, under which it is what it was."""
        with Places() as places:
            for other, entry in self._names.get(key, ()):
                if other != path and is_same(look(places, other), entry):
                    return other
        return None

    def _write_new(self, fd: int, new: str, path: str, entry: Entry) -> None:
        made = os.open(new, _NEW, 0o600, dir_fd=fd)
        try:
            self._reader.write(path, entry, made)
        finally:
            os.close(made)
        _give(fd, new, entry)

    def _write_in_place(self, fd: int, name: str, path: str, entry: Entry) -> None:
        try:
            opened = os.open(name, _IN_PLACE, dir_fd=fd)
        except PermissionError:
            chmod_no_follow(fd, name, 0o600)
            opened = os.open(name, _IN_PLACE, dir_fd=fd)
        try:
            os.ftruncate(opened, 0)
            self._reader.write(path, entry, opened)
        finally:
            os.close(opened)
        _give(fd, name, entry)


def _replace(fd: int, name: str, make: Callable[[str], None]) -> None:
    """Put what `make` makes under a temporary name in the place of what is there: it is the one or the other."""
    new = f"{TEMPORARY}{os.urandom(6).hex()}"
    try:
        make(new)
        os.rename(new, name, src_dir_fd=fd, dst_dir_fd=fd)
    finally:
        # Also when both were names of one file: then a rename does nothing.
        with contextlib.suppress(OSError):
            os.unlink(new, dir_fd=fd)


def remove_temporaries(paths: Iterable[str]) -> None:
    """Remove what an undoing that was broken off left beside these paths. Raises nothing."""
    with Places(writes=True) as places:
        for directory in {path.rpartition("/")[0] for path in paths}:
            with contextlib.suppress(OSError):
                fd, _ = places.of(f"{directory}/{TEMPORARY}")
                listed = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
                try:
                    for name in os.listdir(listed):
                        if name.startswith(TEMPORARY):
                            os.unlink(name, dir_fd=listed)
                finally:
                    os.close(listed)


def _give(dir_fd: int, name: str, entry: Entry) -> None:
    """Owner, attributes, permissions and times, of the very thing that is there: somebody may put another one there
    meanwhile. The owner first: a change of it takes set-id bits away."""
    if entry.kind not in "fd":
        os.chown(name, entry.uid, entry.gid, dir_fd=dir_fd, follow_symlinks=False)
        if entry.kind != "l":
            chmod_no_follow(dir_fd, name, entry.mode)
        os.utime(name, ns=(entry.mtime, entry.mtime), dir_fd=dir_fd, follow_symlinks=False)
        return
    fd = os.open(name, _HANDLE, dir_fd=dir_fd)
    try:
        status = os.fstat(fd)
        if KINDS.get(stat.S_IFMT(status.st_mode)) != entry.kind:
            raise CheckpointError("something else was put there just now")
        handle = f"/proc/self/fd/{fd}"
        if (status.st_uid, status.st_gid) != (entry.uid, entry.gid):
            os.chown(handle, entry.uid, entry.gid)
        _set_attributes(handle, entry.xattrs or {})
        if stat.S_IMODE(os.fstat(fd).st_mode) != entry.mode:
            os.chmod(handle, entry.mode)
        os.utime(handle, ns=(status.st_atime_ns, entry.mtime))
    finally:
        os.close(fd)


def _set_attributes(handle: str, wanted: Mapping[str, str]) -> None:
    now = xattrs_of(handle, follow=True) or {}
    for name, value in wanted.items():
        if now.get(name) != value:
            os.setxattr(handle, name, bytes.fromhex(value))
    for name in now.keys() - wanted.keys():
        os.removexattr(handle, name)
