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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agentbox.errors import CheckpointError
from agentbox.workspace.checkpoint_content import ContentReader
from agentbox.workspace.checkpoint_entries import Change, Entry, is_same, is_unchanged
from agentbox.workspace.checkpoint_scan import Found, entry_of, open_directory
from agentbox.workspace.descent import chmod_no_follow
from agentbox.workspace.names import shown

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TEMPORARY = ".agentbox-undo"
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR)


@dataclass(slots=True)
class Plan:
    """What is to be done: `steps` from what a path is now (`before` of each) to what it is to be (`after`).

    `conflicts` are paths that are neither, `lost` those whose content was not kept, each with why; `done` counts those
    that are as they should be.
    """

    steps: list[Change] = field(default_factory=list)
    conflicts: list[tuple[str, str]] = field(default_factory=list)
    done: int = 0


@dataclass(slots=True)
class Restored:
    """What was done: `paths` with the letter of each (A made, M changed, D removed), `left` with why."""

    paths: list[tuple[str, str]] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)


def look(path: str, hint: Entry | None = None) -> Entry | None:
    """The state of a path now, None where nothing is. `hint` is a state that it may still have. Raises
    CheckpointError."""
    parent, _, name = path.rpartition("/")
    try:
        parent_fd = open_directory(parent)
    except OSError as error:
        if error.errno in _NOTHING_THERE or error.errno == errno.ELOOP:
            return None
        raise _failed(path, error) from error
    try:
        status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
        if hint is not None and is_unchanged(hint, status):
            return hint
        return entry_of(Found(path, parent_fd, name, status), None)
    except FileNotFoundError:
        return None
    finally:
        os.close(parent_fd)


def plan(wanted: Iterable[Change], *, force: bool = False, begun: frozenset[str] = frozenset()) -> Plan:
    """What must be done so that each path is what the `after` of its change says, where it is what the `before` says.

    With `force` also where it is something else. `begun` are paths that an undoing which was broken off had begun to
    write. Raises CheckpointError.
    """
    found = Plan()
    for change in wanted:
        now = look(change.path, change.before)
        is_right = is_same(now, change.after)
        if is_right and not _differs_in_time(now, change):
            found.done += 1
        elif is_same(now, change.before) or force or change.path in begun:
            found.steps.append(Change(change.path, now, change.after))
        elif is_right:
            # Only its times were changed since.
            found.done += 1
        else:
            found.conflicts.append((change.path, _conflict(now, change.before)))
    return found


def _differs_in_time(now: Entry | None, change: Change) -> bool:
    """Whether a path has the times that the run gave it, which are to be what they were too."""
    before, after = change.before, change.after
    if now is None or before is None or after is None:
        return False
    return now.mtime == before.mtime and now.mtime != after.mtime


def _conflict(now: Entry | None, expected: Entry | None) -> str:
    if now is None:
        return "it was removed since"
    if expected is None:
        return "something was put there since"
    return "it was changed since"


def restore(steps: Iterable[Change], reader: ContentReader, known: Mapping[str, Entry]) -> Restored:
    """Do the steps of a plan. `known` are states of paths that may share a file (hard links) with what is restored.

    What cannot be done is `left`; the rest is done. Raises CheckpointError before anything is changed where a content
    is not whole.
    """
    ordered = sorted(steps, key=lambda change: change.path.split("/"))
    for change in ordered:
        if change.after is not None and change.after.kind == "f" and not _has_content(change):
            reader.check(change.path, change.after)
    done = Restored()
    links = _Links(known, ordered)
    for change in reversed(ordered):
        if change.before is not None and (change.after is None or change.after.kind != change.before.kind):
            _attempt(change, done, lambda change=change: _remove(change))
    refused = {path for path, _ in done.left}
    for change in ordered:
        if change.after is not None and change.path not in refused:
            _attempt(change, done, lambda change=change: _make(change, change.after, reader, links))
    for change in reversed(ordered):
        if change.after is not None and change.after.kind == "d":
            _attempt(change, done, lambda change=change: _finish(change.path, change.after))
    failed = {path for path, _ in done.left}
    done.paths = [
        (status, change.path) for change in ordered if change.path not in failed and (status := change.status) != "T"
    ]
    return done


def _has_content(change: Change) -> bool:
    """Whether the content is right already, and only permissions or times are not."""
    before, after = change.before, change.after
    assert after is not None
    return before is not None and before.kind == "f" and (before.content, before.size) == (after.content, after.size)


def _attempt(change: Change, done: Restored, action: object) -> None:
    try:
        action()  # type: ignore[operator]
    except OSError as error:
        done.left.append((change.path, error.strerror or str(error)))
    except CheckpointError as error:
        done.left.append((change.path, error.message))


@contextlib.contextmanager
def _parent(path: str):  # type: ignore[no-untyped-def]
    parent, _, name = path.rpartition("/")
    fd = open_directory(parent)
    try:
        yield fd, name
    finally:
        os.close(fd)


def _remove(change: Change) -> None:
    with _parent(change.path) as (fd, name):
        assert change.before is not None
        try:
            if change.before.kind == "d":
                os.rmdir(name, dir_fd=fd)
            else:
                os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise CheckpointError("it holds what the run did not make") from error
            raise


def _make(change: Change, entry: Entry, reader: ContentReader, links: _Links) -> None:
    same_kind = change.before is not None and change.before.kind == entry.kind
    with _parent(change.path) as (fd, name):
        if entry.kind == "d":
            if not same_kind:
                # Its real mode comes when everything is in it.
                os.mkdir(name, 0o700, dir_fd=fd)
            return
        if entry.kind == "f":
            if same_kind and _has_content(change):
                _give(fd, name, entry)
                return
            links.file(fd, name, change, entry, reader)
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


def _finish(path: str, entry: Entry) -> None:
    with _parent(path) as (fd, name):
        _give(fd, name, entry)


def _give(fd: int, name: str, entry: Entry) -> None:
    """Owner, permissions, attributes and times. The owner first: a change of it takes set-id bits away."""
    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
    if (status.st_uid, status.st_gid) != (entry.uid, entry.gid):
        os.chown(name, entry.uid, entry.gid, dir_fd=fd, follow_symlinks=False)
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
    if entry.kind in "fd":
        _set_attributes(f"/proc/self/fd/{fd}/{name}", entry.xattrs or {})
    if entry.kind != "l" and status.st_mode & 0o7777 != entry.mode:
        chmod_no_follow(fd, name, entry.mode)
    os.utime(name, ns=(status.st_atime_ns, entry.mtime), dir_fd=fd, follow_symlinks=False)


def _set_attributes(path: str, wanted: Mapping[str, str]) -> None:
    from agentbox.workspace.checkpoint_scan import xattrs_of

    now = xattrs_of(path) or {}
    for name, value in wanted.items():
        if now.get(name) != value:
            os.setxattr(path, name, bytes.fromhex(value), follow_symlinks=False)
    for name in now.keys() - wanted.keys():
        os.removexattr(path, name, follow_symlinks=False)


class _Links:
    """Files that had several names get them back as names of one file."""

    def __init__(self, known: Mapping[str, Entry], steps: list[Change]) -> None:
        self._names: dict[tuple[int, int], list[tuple[str, Entry]]] = {}
        wanted = {
            (step.after.device, step.after.inode)
            for step in steps
            if step.after is not None and step.after.kind == "f" and step.after.links > 1
        }
        for path, entry in known.items() if wanted else ():
            if (entry.device, entry.inode) in wanted:
                self._names.setdefault((entry.device, entry.inode), []).append((path, entry))
        self._made: dict[tuple[int, int], str] = {}

    def file(self, fd: int, name: str, change: Change, entry: Entry, reader: ContentReader) -> None:
        """Put a file there: as a further name of one that is there again, else with its content."""
        key = (entry.device, entry.inode)
        if entry.links > 1:
            other = self._made.get(key) or self._unchanged(key, change.path)
            if other is not None and other != change.path:
                with _parent(other) as (other_fd, other_name):
                    self._replace(
                        fd,
                        name,
                        lambda new: os.link(other_name, new, src_dir_fd=other_fd, dst_dir_fd=fd, follow_symlinks=False),
                    )
                return
        now = change.before
        if now is not None and now.kind == "f" and now.links > 1 and (now.device, now.inode) == key:
            # Its other names, which may lie anywhere, are to have this content too.
            self._write_in_place(fd, name, change.path, entry, reader)
        else:
            self._replace(fd, name, lambda new: self._write_new(fd, new, change.path, entry, reader))
        self._made[key] = change.path

    def _unchanged(self, key: tuple[int, int], path: str) -> str | None:
        for other, entry in self._names.get(key, ()):
            if other != path and (now := look(other)) is not None and is_same(now, entry):
                return other
        return None

    @staticmethod
    def _replace(fd: int, name: str, make: object) -> None:
        new = f"{_TEMPORARY}-{os.urandom(6).hex()}"
        make(new)  # type: ignore[operator]
        try:
            os.rename(new, name, src_dir_fd=fd, dst_dir_fd=fd)
            # Two names of one file are left alone by a rename.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new, dir_fd=fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(new, dir_fd=fd)
            raise

    @staticmethod
    def _write_new(fd: int, new: str, path: str, entry: Entry, reader: ContentReader) -> None:
        try:
            made = os.open(new, _NEW, 0o600, dir_fd=fd)
            try:
                reader.write(path, entry, made)
            finally:
                os.close(made)
            _give(fd, new, entry)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new, dir_fd=fd)
            raise

    @staticmethod
    def _write_in_place(fd: int, name: str, path: str, entry: Entry, reader: ContentReader) -> None:
        opened = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
        try:
            os.ftruncate(opened, 0)
            reader.write(path, entry, opened)
        finally:
            os.close(opened)
        _give(fd, name, entry)


def failed_in_words(left: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each path that was left."""
    return [f"{shown(path)}: {why}" for path, why in left]


def _failed(path: str, error: OSError) -> CheckpointError:
    return CheckpointError(f"{shown(path)} cannot be looked at: {error.strerror or error}", path=path)
