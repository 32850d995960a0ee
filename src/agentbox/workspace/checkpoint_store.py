# SPDX-License-Identifier: MIT
"""The checkpoints of a project, in `.agentbox/checkpoints/ID/`: taking one, and finding those that were taken.

A directory of a checkpoint appears under its name when it is complete, by a rename: whatever is killed, there is a
whole checkpoint or none. Nothing waits for the disk: a checkpoint outlives every process, but maybe not the power.
Contents that did not change since an earlier checkpoint are not kept again: its entries name the earlier one's file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentbox.errors import AgentboxError, CheckpointError, NotFoundError, WorkspaceError
from agentbox.workspace.checkpoint_content import is_full
from agentbox.workspace.checkpoint_entries import Change, Entry, differences
from agentbox.workspace.checkpoint_files import (
    A_DIRECTORY,
    DIRECTORY,
    FORMAT,
    dump,
    entry_of_row,
    load,
    open_no_links,
    opened_below,
    replace_file,
)
from agentbox.workspace.checkpoint_reading import entry_of
from agentbox.workspace.checkpoint_scan import Scope, walk
from agentbox.workspace.checkpoint_taking import fill
from agentbox.workspace.names import shown
from agentbox.workspace.removal import remove_tree

KEPT = 10
_NAME = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}\Z")
_NEW = ".new-"
_MAX_MANIFEST_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Taken:
    """A checkpoint of the store. `details` are what was noted about it: `run_id`, `directory`, `roots`, `created`."""

    id: str
    details: Mapping[str, Any]

    @property
    def run_id(self) -> str:
        """The id of the run that it was taken for."""
        return str(self.details.get("run_id", ""))

    @property
    def names(self) -> tuple[str, ...]:
        """What it may be called: by its id, by that of its run, by that of snapback's snapshot."""
        return (self.id, self.run_id, str(self.details.get("snapback", "")))


class CheckpointStore:
    """The checkpoints of the project at `directory`."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.path = f"{directory}/{DIRECTORY}"

    def make(self) -> None:
        """Make the directory, as the project's owner's. Raises CheckpointError."""
        try:
            with open_no_links(self.directory) as top:
                owner = os.fstat(top)
                here = os.dup(top)
                try:
                    for name in DIRECTORY.split("/"):
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(name, 0o755, dir_fd=here)
                            if os.geteuid() == 0 and owner.st_uid != 0:
                                os.chown(name, owner.st_uid, owner.st_gid, dir_fd=here, follow_symlinks=False)
                        below = os.open(name, A_DIRECTORY, dir_fd=here)
                        os.close(here)
                        here = below
                finally:
                    os.close(here)
        except OSError as error:
            raise CheckpointError(
                f"{self.path} cannot be made: {error.strerror}",
                hint="run in a directory that you may write to; no part of it may be a link",
            ) from error

    def take(
        self, name: str, run_id: str, scope: Scope, made: frozenset[str] = frozenset(), snapback: str = ""
    ) -> dict[str, Entry]:
        """Take a checkpoint of that name (YYYYMMDD-HHMMSS-xxxxxx): the state of everything in the scope. `made` are
        paths that were made for the run itself; what is empty of them counts as not there. `snapback` is the id of the
        snapshot that snapback took beside it.

        Raises CheckpointError; there is no checkpoint then.
        """
        self.make()
        self.tidy(KEPT - 1)
        with self._locked(fcntl.LOCK_SH) as store_fd:
            new = f"{_NEW}{name}"
            try:
                os.mkdir(new, 0o700, dir_fd=store_fd)
                with opened_below(store_fd, new) as own:
                    about = {"run_id": run_id, "snapback": snapback}
                    entries = fill(own, name, scope, self._cache(store_fd, scope), made=made, about=about)
                os.rename(new, name, src_dir_fd=store_fd, dst_dir_fd=store_fd)
            except OSError as error:
                _remove(store_fd, new)
                raise _not_kept(self.path, error) from error
            except BaseException:
                _remove(store_fd, new)
                raise
        return entries

    def _cache(self, store_fd: int, scope: Scope) -> dict[str, Entry]:
        """What the newest checkpoint that covers the same knows, and still has."""
        for taken in self.all():
            if set(scope.roots) & set(taken.details["roots"]):
                with contextlib.suppress(CheckpointError):
                    return _with_content(store_fd, self.before(taken))
        return {}

    def note_changes(self, name: str, scope: Scope, before: Mapping[str, Entry]) -> list[Change]:
        """Find out what changed since the checkpoint, and keep that with it. Raises CheckpointError."""
        after: dict[str, Entry] = {}
        for found in walk(scope):
            with contextlib.suppress(FileNotFoundError):
                after[found.path] = entry_of(found, before.get(found.path))
        changes = differences(before, after)
        with self._locked(fcntl.LOCK_SH) as store_fd, opened_below(store_fd, name) as own:
            try:
                replace_file(own, "changes", dump({"format": FORMAT, "changes": changes}))
            except OSError as error:
                raise _not_kept(self.path, error) from error
        return changes

    def all(self) -> list[Taken]:
        """The checkpoints that this user took, the newest first."""
        found = []
        with contextlib.suppress(OSError), open_no_links(self.path) as store_fd:
            for name in filter(_NAME.match, os.listdir(store_fd)):
                with contextlib.suppress(AgentboxError, OSError):
                    found.append(self.get(name))
        return sorted(found, key=lambda taken: float(taken.details["created"]), reverse=True)

    def hold(self, name: str) -> int:
        """A descriptor that says, as long as it is open, that the run of a checkpoint goes on. Raises OSError."""
        with open_no_links(self.path) as store_fd:
            fd = os.open(name, A_DIRECTORY, dir_fd=store_fd)
        fcntl.flock(fd, fcntl.LOCK_SH)
        return fd

    def goes_on(self, taken: Taken) -> bool:
        """Whether the run of a checkpoint has not ended yet."""
        try:
            with open_no_links(self.path) as store_fd:
                return _goes_on(store_fd, taken.id)
        except OSError:
            return False

    def get(self, name: str) -> Taken:
        """The checkpoint of that name. Raises NotFoundError, CheckpointError where it is somebody else's."""
        unknown = NotFoundError(f"there is no checkpoint {shown(name)}", hint="`agentbox undo --list` names them all")
        if not _NAME.match(name):
            raise unknown
        try:
            details = load(self._read(name, "details"))
        except FileNotFoundError:
            raise unknown from None
        if details["id"] != name:
            raise _changed(f"{self.path}/{name}/details")
        return Taken(name, details)

    def find(self, named: str) -> Taken:
        """The checkpoint of that name, or of the run with that id; the beginning of either is enough. Raises
        NotFoundError."""
        found = [one for one in self.all() if named and any(name.startswith(named) for name in one.names)]
        if len(found) == 1:
            return found[0]
        if len(found) > 1:
            raise NotFoundError(f"{shown(named)} fits {len(found)} checkpoints", hint="write more of its name")
        return self.get(named)

    def before(self, taken: Taken) -> dict[str, Entry]:
        """The state that the checkpoint keeps. Raises CheckpointError where it was changed."""
        text = self._read(taken.id, "before")
        if hashlib.sha256(text).hexdigest() != taken.details["sha256"]:
            raise _changed(f"{self.path}/{taken.id}/before")
        return {path: entry_of_row(row) for path, row in load(text)["entries"].items()}

    def changes(self, taken: Taken) -> list[Change] | None:
        """What the run changed, None where it ended before that could be noted. Raises CheckpointError."""
        text = self.read(taken, "changes")
        if text is None:
            return None
        return [
            Change(path, None if one is None else entry_of_row(one), None if other is None else entry_of_row(other))
            for path, one, other in load(text)["changes"]
        ]

    def read(self, taken: Taken, file: str) -> bytes | None:
        """A file that lies with the checkpoint, None where it does not. Raises CheckpointError."""
        try:
            return self._read(taken.id, file)
        except FileNotFoundError:
            return None

    def _read(self, name: str, file: str) -> bytes:
        """A file of a checkpoint of this user's own: whoever else could write there decides nothing. Raises
        FileNotFoundError, CheckpointError."""
        try:
            with open_no_links(self.path) as store_fd, opened_below(store_fd, name) as own:
                status = os.fstat(own)
                if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
                    raise CheckpointError(
                        f"the checkpoint {name} belongs to another user",
                        hint=f"undo it as the user with the uid {status.st_uid}, who started that run",
                    )
                fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=own)
                with open(fd, "rb") as opened:
                    return opened.read(_MAX_MANIFEST_BYTES)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise CheckpointError(
                f"{self.path}/{name}/{file} cannot be read: {error.strerror}", hint="ask the user who started that run"
            ) from error

    @contextlib.contextmanager
    def opened(self, taken: Taken) -> Iterator[tuple[int, int]]:
        """Descriptors of the store and of one checkpoint, while nobody else restores or tidies. Raises
        CheckpointError."""
        with self._locked(fcntl.LOCK_EX) as store_fd, opened_below(store_fd, taken.id) as own:
            try:
                fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CheckpointError(
                    f"the run of {taken.id} goes on", hint="wait until it has ended, or end it, and try again"
                ) from None
            yield store_fd, own

    @contextlib.contextmanager
    def reading(self) -> Iterator[int]:
        """A descriptor of the store, while nobody restores or tidies. Raises CheckpointError."""
        with self._locked(fcntl.LOCK_SH) as store_fd:
            yield store_fd

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[int]:
        try:
            with open_no_links(self.path) as fd:
                fcntl.flock(fd, how)
                yield fd
        except BlockingIOError as error:
            raise CheckpointError(f"{self.path} is in use", hint="try again when no run goes on") from error

    def tidy(self, kept: int = KEPT) -> None:
        """Remove all but the newest checkpoints, but for contents that those use, and what killed runs left unfinished.
        Those of runs that go on stay. Raises nothing."""
        with contextlib.suppress(CheckpointError, OSError), self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB) as store_fd:
            every = self.all()
            newest = every[:kept]
            used = {name for taken in newest for name in taken.details["uses"]}
            for taken in every[kept:]:
                if not _goes_on(store_fd, taken.id):
                    _forget(store_fd, taken.id, with_contents=taken.id not in used)
            known = {taken.id for taken in every}
            for name in os.listdir(store_fd):
                # Nobody takes one now. Those of others stay: they cannot be read, and not be removed.
                is_left = name.startswith(_NEW) or (_NAME.match(name) and _has_no_details(store_fd, name))
                if is_left and name not in used | known:
                    _remove(store_fd, name)


def _with_content(store_fd: int, entries: dict[str, Entry]) -> dict[str, Entry]:
    """The entries whose content is there, as far as one can see without reading it."""
    sizes: dict[str, int] = {}
    found = {}
    for path, entry in entries.items():
        if entry.file:
            size = sizes.get(entry.file)
            if size is None:
                try:
                    size = os.stat(entry.file, dir_fd=store_fd, follow_symlinks=False).st_size
                except OSError:
                    size = -1
                sizes[entry.file] = size
            if entry.offset + entry.size > size:
                continue
        found[path] = entry
    return found


def _goes_on(store_fd: int, name: str) -> bool:
    with opened_below(store_fd, name) as own:
        try:
            fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _forget(store_fd: int, name: str, *, with_contents: bool) -> None:
    """Without its details it is no checkpoint any more."""
    if with_contents:
        _remove(store_fd, name)
        return
    with opened_below(store_fd, name) as own:
        for file in os.listdir(own):
            if not file.startswith("content"):
                os.unlink(file, dir_fd=own)


def _remove(store_fd: int, name: str) -> None:
    with contextlib.suppress(WorkspaceError):
        remove_tree(store_fd, name)


def _has_no_details(store_fd: int, name: str) -> bool:
    try:
        os.stat(f"{name}/details", dir_fd=store_fd)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _changed(path: str) -> CheckpointError:
    return CheckpointError(f"the checkpoint is damaged: {path} was changed", hint="nothing was restored from it")


def _not_kept(path: str, error: OSError) -> CheckpointError:
    if is_full(error):
        return CheckpointError(
            f"{path}: the disk is full",
            hint="make room, remove old checkpoints below it, or let the policy grant writing to less",
            errno=error.errno,
        )
    return CheckpointError(
        f"{path}: the checkpoint cannot be kept: {error.strerror or error}",
        hint="see who may write there",
        errno=error.errno,
    )
