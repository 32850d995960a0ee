# SPDX-License-Identifier: MIT
"""Snapshots of workspaces: immutable archives on the host, named by tokens, each of one owner.

Beside each archive lies `<id>.json` with its sizes and its SHA-256, which is checked before a byte is restored.
Archives of S1 have no such file; they load, protected by their own checksums only. A store may be used by several
threads and processes at once. Calls block; run them in a thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from agentbox.errors import AgentboxError, NotFoundError, QuotaExceededError, UnsafeArchiveError, WorkspaceError
from agentbox.workspace import vault
from agentbox.workspace.archive import read_archive, write_archive
from agentbox.workspace.faults import FULL
from agentbox.workspace.names import shown
from agentbox.workspace.tree import Tree

_ID = re.compile(r"[0-9a-f]{32}\Z")
_ARCHIVE = ".tar.gz"
_NOTE = ".json"
_MAX_NOTE_BYTES = 4096
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A stored snapshot. `created_at` is in Unix seconds; sizes are bytes.

    `unpacked_bytes` and `entries` are None for an archive of S1. `warnings` is filled by `save` only.
    """

    snapshot_id: str
    created_at: float
    packed_bytes: int
    unpacked_bytes: int | None = None
    entries: int | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Note:
    """The content of `<id>.json`."""

    sha256: str
    created_at: float
    packed_bytes: int
    unpacked_bytes: int
    entries: int
    version: int = 1

    def fits(self, archive: BinaryIO) -> bool:
        """Whether the archive is the one that the note was written for."""
        return os.fstat(archive.fileno()).st_size == self.packed_bytes and _sha256(archive) == self.sha256


class SnapshotStore:
    """Snapshots below `root`. `max_bytes` bounds one unpacked, `quota_bytes` what one owner may store packed,
    `ttl_seconds` is the age at which one expires (0: never). `elsewhere` restores those that are not here.

    Raises WorkspaceError at once when `root` is a link, of another user, or writable by everyone.
    """

    def __init__(
        self,
        root: Path,
        *,
        max_bytes: int,
        quota_bytes: int,
        ttl_seconds: int,
        elsewhere: Callable[[str, str, Tree], tuple[str, ...]] | None = None,
    ) -> None:
        self._root = root
        self._elsewhere = elsewhere
        self._max_bytes = max_bytes
        self._quota_bytes = quota_bytes
        self._ttl_seconds = ttl_seconds
        with vault.opened_root(root):
            pass

    def save(self, owner: str, tree: Tree, *, exclude: frozenset[str] = frozenset()) -> SnapshotInfo:
        """Store the tree, without the names in `exclude` at its top, under a new id.

        Raises QuotaExceededError when it or the owner's store is too large, WorkspaceError when the disk is full or
        the tree cannot be read. Nothing is left behind then.
        """
        snapshot_id = secrets.token_hex(16)
        with vault.opened_owner(self._root, owner, create=True) as dir_fd:
            if dir_fd is None:
                raise WorkspaceError(f"{self._root}: the snapshot directory went away", hint="make it again")
            try:
                # What the owner can no longer see must not count against the quota.
                self._remove_expired(dir_fd)
                return self._save(dir_fd, snapshot_id, tree, exclude)
            except OSError as error:
                raise WorkspaceError(
                    f"the snapshot cannot be stored: {error.strerror}",
                    hint=f"make room in {self._root}" if error.errno in FULL else f"see {self._root}",
                    errno=error.errno,
                ) from error

    def _save(self, dir_fd: int, snapshot_id: str, tree: Tree, exclude: frozenset[str]) -> SnapshotInfo:
        stored = _stored_bytes(dir_fd)
        with vault.new_file(dir_fd) as (fd, new_name), open(fd, "w+b", buffering=_BUFFER, closefd=False) as out_file:
            target = cast(BinaryIO, _Capped(out_file, self._quota_bytes - stored, self._quota_error(stored)))
            summary = write_archive(tree, target, exclude=exclude, max_bytes=self._max_bytes)
            out_file.flush()
            os.fdatasync(fd)
            packed = os.fstat(fd).st_size
            note = _Note(_sha256(out_file), time.time(), packed, summary.unpacked_bytes, summary.entries)
            with vault.new_file(dir_fd) as (note_fd, note_name):
                os.write(note_fd, json.dumps(asdict(note), separators=(",", ":")).encode())
                with vault.locked(dir_fd):
                    stored = _stored_bytes(dir_fd)
                    if stored + packed > self._quota_bytes:
                        raise self._quota_error(stored)
                    # The note comes first, so that an archive of ours is never seen without its digest.
                    os.rename(note_name, snapshot_id + _NOTE, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
                    os.rename(new_name, snapshot_id + _ARCHIVE, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
            return replace(_info(snapshot_id, os.fstat(fd), note), warnings=summary.warnings)

    def _quota_error(self, stored: int) -> QuotaExceededError:
        return QuotaExceededError(
            f"the snapshot does not fit: {stored} of {self._quota_bytes} bytes are stored",
            hint="delete snapshots with DELETE /v1/snapshots/{id}, or raise AGENTBOX_SNAPSHOT_QUOTA_BYTES",
            stored_bytes=stored,
            quota_bytes=self._quota_bytes,
        )

    def restore(self, owner: str, snapshot_id: str, tree: Tree) -> tuple[str, ...]:
        """Unpack a snapshot into the empty directory `tree`; returns warnings about links that were left out.

        Raises NotFoundError, UnsafeArchiveError when the stored file was changed, is damaged or breaks a rule, and
        WorkspaceError when the disk is full. The tree must be thrown away then.
        """
        try:
            return self._restore(owner, snapshot_id, tree)
        except NotFoundError:
            if self._elsewhere is None or not _ID.match(snapshot_id):
                raise
        return self._elsewhere(owner, snapshot_id, tree)

    def _restore(self, owner: str, snapshot_id: str, tree: Tree) -> tuple[str, ...]:
        with self._opened(owner, snapshot_id) as (archive, note):
            try:
                if note is not None and not note.fits(archive):
                    raise _tampered(snapshot_id)
                archive.seek(0)
                return read_archive(archive, tree, max_bytes=self._max_bytes).warnings
            except AgentboxError as error:
                error.data["snapshot_id"] = snapshot_id
                raise
            except OSError as error:
                raise _unreadable(snapshot_id, error) from error

    def list(self, owner: str) -> tuple[SnapshotInfo, ...]:
        """The owner's snapshots that have not expired, newest first."""
        with vault.opened_owner(self._root, owner) as dir_fd:
            if dir_fd is None:
                return ()
            found = [info for info in _infos(dir_fd) if not self._expired(info)]
        return tuple(sorted(found, key=lambda info: (info.created_at, info.snapshot_id), reverse=True))

    def get(self, owner: str, snapshot_id: str) -> SnapshotInfo:
        """One snapshot. Raises NotFoundError."""
        with self._opened(owner, snapshot_id) as (archive, note):
            return _info(snapshot_id, os.fstat(archive.fileno()), note)

    def delete(self, owner: str, snapshot_id: str) -> None:
        """Remove one snapshot. Raises NotFoundError, also when another call removed it first."""
        if not _ID.match(snapshot_id):
            raise _unknown(snapshot_id)
        with vault.opened_owner(self._root, owner) as dir_fd:
            if dir_fd is None or not _remove(dir_fd, snapshot_id):
                raise _unknown(snapshot_id)

    def expire(self) -> int:
        """Remove every owner's snapshots that are older than `ttl_seconds`; returns how many."""
        if not self._ttl_seconds:
            return 0
        with vault.opened_root(self._root) as root_fd:
            return sum(map(self._remove_expired, vault.all_directories(root_fd)))

    def _remove_expired(self, dir_fd: int) -> int:
        if not self._ttl_seconds:
            return 0
        expired = [info.snapshot_id for info in _infos(dir_fd) if self._expired(info)]
        return sum(_remove(dir_fd, snapshot_id) for snapshot_id in expired)

    def sweep(self) -> int:
        """Remove what killed writers left behind, in every owner's directory; returns how many files."""
        with vault.opened_root(self._root) as root_fd:
            return sum(
                vault.sweep_new_files(dir_fd) + _remove_lonely_notes(dir_fd)
                for dir_fd in vault.all_directories(root_fd)
            )

    def _expired(self, info: SnapshotInfo) -> bool:
        return bool(self._ttl_seconds) and info.created_at + self._ttl_seconds <= time.time()

    @contextlib.contextmanager
    def _opened(self, owner: str, snapshot_id: str) -> Iterator[tuple[BinaryIO, _Note | None]]:
        if not _ID.match(snapshot_id):
            raise _unknown(snapshot_id)
        with vault.opened_owner(self._root, owner) as dir_fd:
            if dir_fd is None:
                raise _unknown(snapshot_id)
            try:
                fd = os.open(snapshot_id + _ARCHIVE, _READ, dir_fd=dir_fd)
            except FileNotFoundError:
                raise _unknown(snapshot_id) from None
            except OSError as error:
                raise _unreadable(snapshot_id, error) from error
            with open(fd, "rb") as archive:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise _tampered(snapshot_id)
                note = _read_note(dir_fd, snapshot_id)
                if self._expired(_info(snapshot_id, os.fstat(fd), note)):
                    raise _unknown(snapshot_id)
                yield archive, note


class _Capped:
    """A file that refuses to grow over what is left of the quota."""

    def __init__(self, out_file: BinaryIO, left: int, error: QuotaExceededError) -> None:
        self._out_file = out_file
        self._left = left
        self._error = error

    def write(self, data: bytes) -> int:
        self._left -= len(data)
        if self._left < 0:
            raise self._error
        return self._out_file.write(data)


def _unknown(snapshot_id: str) -> NotFoundError:
    return NotFoundError(f"Unknown snapshot: {shown(snapshot_id, 64)}", hint="list yours with GET /v1/snapshots")


def _unreadable(snapshot_id: str, error: OSError) -> WorkspaceError:
    return WorkspaceError(
        f"snapshot {snapshot_id} cannot be read: {error.strerror}",
        hint="look at the disk that AGENTBOX_SNAPSHOT_DIR is on",
        snapshot_id=snapshot_id,
        errno=error.errno,
    )


def _tampered(snapshot_id: str) -> UnsafeArchiveError:
    return UnsafeArchiveError(
        f"snapshot {snapshot_id} is damaged or was changed where it is stored; nothing was restored",
        hint="delete it and use another one",
        snapshot_id=snapshot_id,
    )


def _sha256(archive: BinaryIO) -> str:
    digest = hashlib.sha256()
    archive.seek(0)
    while chunk := archive.read(_BUFFER):
        digest.update(chunk)
    return digest.hexdigest()


def _info(snapshot_id: str, status: os.stat_result, note: _Note | None) -> SnapshotInfo:
    if note is None:
        return SnapshotInfo(snapshot_id, status.st_mtime, status.st_size)
    return SnapshotInfo(snapshot_id, note.created_at, status.st_size, note.unpacked_bytes, note.entries)


def _archives(dir_fd: int) -> Iterator[tuple[str, os.stat_result]]:
    """Ids and status of the archives in a directory; one that is deleted meanwhile is passed over."""
    for name in os.listdir(dir_fd):
        snapshot_id = name.removesuffix(_ARCHIVE)
        if snapshot_id == name or not _ID.match(snapshot_id):
            continue
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                yield snapshot_id, status


def _infos(dir_fd: int) -> Iterator[SnapshotInfo]:
    for snapshot_id, status in _archives(dir_fd):
        try:
            note = _read_note(dir_fd, snapshot_id)
        except UnsafeArchiveError:
            # Still listed, so that it can be found, counted and deleted.
            note = None
        yield _info(snapshot_id, status, note)


def _stored_bytes(dir_fd: int) -> int:
    return sum(status.st_size for _, status in _archives(dir_fd))


def _read_note(dir_fd: int, snapshot_id: str) -> _Note | None:
    """The note beside an archive, None when there is none. Raises UnsafeArchiveError when it is not one of ours."""
    try:
        fd = os.open(snapshot_id + _NOTE, _READ, dir_fd=dir_fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _tampered(snapshot_id) from error
    with open(fd, "rb") as file:
        try:
            found = json.loads(file.read(_MAX_NOTE_BYTES))
            return _Note(
                sha256=str(found["sha256"]),
                created_at=float(found["created_at"]),
                packed_bytes=int(found["packed_bytes"]),
                unpacked_bytes=int(found["unpacked_bytes"]),
                entries=int(found["entries"]),
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise _tampered(snapshot_id) from error


def _remove(dir_fd: int, snapshot_id: str) -> bool:
    with vault.locked(dir_fd):
        try:
            os.unlink(snapshot_id + _ARCHIVE, dir_fd=dir_fd)
        except FileNotFoundError:
            return False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(snapshot_id + _NOTE, dir_fd=dir_fd)
    return True


def _remove_lonely_notes(dir_fd: int) -> int:
    with vault.locked(dir_fd):
        kept = {snapshot_id for snapshot_id, _ in _archives(dir_fd)}
        notes = [name for name in os.listdir(dir_fd) if _ID.match(name.removesuffix(_NOTE)) and name.endswith(_NOTE)]
        lonely = [name for name in notes if name.removesuffix(_NOTE) not in kept]
        for name in lonely:
            os.unlink(name, dir_fd=dir_fd)
    return len(lonely)
