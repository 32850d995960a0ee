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
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentbox.errors import AgentboxError, CheckpointError, NotFoundError, WorkspaceError
from agentbox.workspace.checkpoint_content import ContentWriter, is_full
from agentbox.workspace.checkpoint_entries import Change, Entry, differences, is_unchanged
from agentbox.workspace.checkpoint_places import open_directory
from agentbox.workspace.checkpoint_scan import Found, Scope, entry_of, read_file, walk, xattrs_of
from agentbox.workspace.checkpoint_times import LASTING, Trust
from agentbox.workspace.names import shown
from agentbox.workspace.removal import remove_tree

DIRECTORY = ".agentbox/checkpoints"
KEPT = 10
FORMAT = "agentbox-checkpoint/1"
_NAME = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}\Z")
_FILE = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}/[a-z]+(?:-[0-9]+)?\Z")
_A_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_A_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TYPE, _REGULAR = 0o170000, 0o100000
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
                        below = os.open(name, _A_DIRECTORY, dir_fd=here)
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
        with self._locked(fcntl.LOCK_SH) as store_fd:
            self._sweep(store_fd)
            new = f".new-{name}"
            try:
                os.mkdir(new, 0o700, dir_fd=store_fd)
                own = os.open(new, _A_DIRECTORY, dir_fd=store_fd)
            except OSError as error:
                raise _not_kept(self.path, error) from error
            try:
                fcntl.flock(own, fcntl.LOCK_EX)
                entries = self._fill(own, name, run_id, scope, made, snapback)
                os.rename(new, name, src_dir_fd=store_fd, dst_dir_fd=store_fd)
            except OSError as error:
                self._remove(store_fd, new)
                raise _not_kept(self.path, error) from error
            except BaseException:
                self._remove(store_fd, new)
                raise
            finally:
                os.close(own)
        self.tidy()
        return entries

    def _fill(
        self, own: int, name: str, run_id: str, scope: Scope, made: frozenset[str], snapback: str
    ) -> dict[str, Entry]:
        trust = Trust()
        cache = self._cache(scope)
        writer = ContentWriter(own, name)
        entries: dict[str, Entry] = {}
        try:
            for found in walk(scope):
                before = cache.get(found.path)
                if before is not None and before.sure >= LASTING and is_unchanged(before, found.status):
                    entries[found.path] = before
                    continue
                with contextlib.suppress(FileNotFoundError):
                    entries[found.path] = self._kept(found, before, writer, trust)
            writer.finish()
        finally:
            writer.close()
        _leave_out(entries, made)
        text = dump({"format": FORMAT, "entries": entries})
        write_file(own, "before", text)
        details = {
            "format": FORMAT,
            "id": name,
            "run_id": run_id,
            "snapback": snapback,
            "directory": scope.directory,
            "roots": list(scope.roots),
            "excluded": sorted(scope.excluded),
            "ignored": list(scope.ignored),
            "created": time.time(),
            "began_ns": trust.began_ns,
            "sha256": hashlib.sha256(text).hexdigest(),
            "uses": sorted({entry.file.partition("/")[0] for entry in entries.values() if entry.file} - {name}),
        }
        write_file(own, "details", dump(details))
        return entries

    def _kept(self, found: Found, before: Entry | None, writer: ContentWriter, trust: Trust) -> Entry:
        """The entry of a path, its content kept. Raises FileNotFoundError, CheckpointError, OSError."""
        if found.status.st_mode & _TYPE != _REGULAR:
            return entry_of(found, None)
        reading = read_file(found)
        try:
            entry = Entry.of(reading.status, reading.digest)
            if before is not None and (before.content, before.size) == (entry.content, entry.size) and before.file:
                file, offset = before.file, before.offset
            else:
                file, offset, digest = writer.keep(reading)
                entry = entry._replace(content=digest)
            sure = trust.in_times_of(found.path, entry) if reading.is_stable else 0
            return entry._replace(file=file, offset=offset, sure=sure, xattrs=xattrs_of(reading.fd))
        finally:
            os.close(reading.fd)

    def _cache(self, scope: Scope) -> dict[str, Entry]:
        """What the newest checkpoint that covers the same knows."""
        for taken in self.all():
            if set(scope.roots) & set(taken.details["roots"]):
                with contextlib.suppress(CheckpointError):
                    return self.before(taken)
        return {}

    def note_changes(self, name: str, scope: Scope, before: Mapping[str, Entry]) -> list[Change]:
        """Find out what changed since the checkpoint, and keep that with it. Raises CheckpointError."""
        after: dict[str, Entry] = {}
        for found in walk(scope):
            with contextlib.suppress(FileNotFoundError):
                after[found.path] = entry_of(found, before.get(found.path))
        changes = differences(before, after)
        with self._locked(fcntl.LOCK_SH) as store_fd, _opened(store_fd, name) as own:
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
            fd = os.open(name, _A_DIRECTORY, dir_fd=store_fd)
        fcntl.flock(fd, fcntl.LOCK_SH)
        return fd

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
            with open_no_links(self.path) as store_fd, _opened(store_fd, name) as own:
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
        with self._locked(fcntl.LOCK_EX) as store_fd, _opened(store_fd, taken.id) as own:
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

    def tidy(self) -> None:
        """Remove the oldest checkpoints beyond those that are kept, but for contents that newer ones use. Raises
        nothing."""
        with contextlib.suppress(CheckpointError, OSError), self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB) as store_fd:
            every = self.all()
            used = {name for taken in every[:KEPT] for name in taken.details["uses"]}
            for taken in every[KEPT:]:
                if taken.id not in used:
                    self._remove(store_fd, taken.id)
                    continue
                with _opened(store_fd, taken.id) as own:
                    # Without its details it is no checkpoint any more.
                    for file in ("details", "changes", "before", "undone"):
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(file, dir_fd=own)
            known = {taken.id for taken in every}
            for name in os.listdir(store_fd):
                # Those of others stay: they cannot be read, and not be removed.
                if _NAME.match(name) and name not in used | known and _has_no_details(store_fd, name):
                    self._remove(store_fd, name)

    def _sweep(self, store_fd: int) -> None:
        """Remove what killed runs left unfinished."""
        for name in os.listdir(store_fd):
            if not name.startswith(".new-"):
                continue
            with contextlib.suppress(OSError), _opened(store_fd, name) as left:
                fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._remove(store_fd, name)

    def _remove(self, store_fd: int, name: str) -> None:
        with contextlib.suppress(WorkspaceError):
            remove_tree(store_fd, name)


@contextlib.contextmanager
def _opened(store_fd: int, name: str) -> Iterator[int]:
    fd = os.open(name, _A_DIRECTORY, dir_fd=store_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def _has_no_details(store_fd: int, name: str) -> bool:
    try:
        os.stat(f"{name}/details", dir_fd=store_fd)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


@contextlib.contextmanager
def open_no_links(path: str) -> Iterator[int]:
    """A descriptor of a directory, for reading too, no part of whose path is a link. Raises OSError."""
    place = open_directory(path)
    try:
        fd = os.open(".", _A_DIRECTORY, dir_fd=place)
    finally:
        os.close(place)
    try:
        yield fd
    finally:
        os.close(fd)


def _leave_out(entries: dict[str, Entry], made: frozenset[str]) -> None:
    """What was made for the run's own sake was not there before it, unless somebody has put something there."""
    for path in sorted(made, key=len, reverse=True):
        entry = entries.get(path)
        if entry is None or (entry.kind == "f" and entry.size):
            continue
        if entry.kind == "d" and any(other.startswith(path + "/") for other in entries):
            continue
        del entries[path]


def write_file(dir_fd: int, name: str, text: bytes) -> None:
    """Write a new file. Raises OSError."""
    with open(os.open(name, _A_NEW_FILE, 0o600, dir_fd=dir_fd), "wb") as file:
        file.write(text)


def replace_file(dir_fd: int, name: str, text: bytes) -> None:
    """Write a file in the place of one that may be there; whatever is killed, it is the old or the new one. Raises
    OSError."""
    new = f"{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new, dir_fd=dir_fd)
    write_file(dir_fd, new, text)
    os.rename(new, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


def dump(value: Any) -> bytes:
    """A file of a checkpoint: the digest of what follows, and JSON."""
    text = json.dumps(value, separators=(",", ":")).encode("ascii")
    return hashlib.sha256(text).hexdigest().encode("ascii") + b"\n" + text


def load(text: bytes) -> Any:
    """What `dump` gave. Raises CheckpointError where it was changed."""
    digest, _, body = text.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode("ascii") != digest:
        raise CheckpointError(
            "the checkpoint is damaged: a file of it was changed", hint="nothing was restored from it"
        )
    value = json.loads(body)
    if value.get("format") != FORMAT:
        raise CheckpointError(
            "the checkpoint has a form that this agentbox does not know", hint="use the version that took it"
        )
    return value


def entry_of_row(row: Any) -> Entry:
    """An entry as it was kept. Raises CheckpointError."""
    entry = Entry(*row)
    if entry.file and not _FILE.match(entry.file):
        raise CheckpointError("the checkpoint is damaged", hint="it cannot be used any more")
    return entry


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
