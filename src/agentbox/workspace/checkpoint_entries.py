# SPDX-License-Identifier: MIT
"""What a checkpoint knows of one path, and the differences between two states of a tree. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

# Kinds by the type bits of st_mode: file, directory, link, fifo, socket, character and block device.
KINDS = {0o100000: "f", 0o040000: "d", 0o120000: "l", 0o010000: "p", 0o140000: "s", 0o020000: "c", 0o060000: "b"}
_TYPE, _PERMISSIONS = 0o170000, 0o7777

# A = made by the run, M = changed, D = removed, T = only its times are others.
ADDED, MODIFIED, DELETED, TOUCHED = "A", "M", "D", "T"


class Entry(NamedTuple):
    """One path as it was. Times are nanoseconds; `mode` has the permission bits alone.

    `content` is the digest of a file's content (checkpoint_digests.py), the target of a link, or the number of a
    device, '' where it is not known. `file` and `offset` say where the content is kept: a path below the store, ''
    where it is not. `sure` says how far the times vouch for the content: see checkpoint_times.py.
    """

    kind: str
    mode: int
    uid: int
    gid: int
    size: int
    mtime: int
    ctime: int
    device: int
    inode: int
    links: int
    content: str = ""
    file: str = ""
    offset: int = 0
    sure: int = 0
    xattrs: Mapping[str, str] | None = None

    @classmethod
    def of(cls, status: os.stat_result, content: str = "") -> Entry:
        """What lstat says of a path, and its content where that is known."""
        mode = status.st_mode
        kind = KINDS[mode & _TYPE]
        return cls(
            kind,
            mode & _PERMISSIONS,
            status.st_uid,
            status.st_gid,
            status.st_size if kind == "f" else 0,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_dev,
            status.st_ino,
            status.st_nlink,
            content or (str(status.st_rdev) if kind in "cb" else ""),
        )


def is_unchanged(entry: Entry, status: os.stat_result) -> bool:
    """Whether lstat says that nothing was done to a file since: no program can set the time of its last change."""
    return (
        entry.ctime == status.st_ctime_ns
        and entry.inode == status.st_ino
        and entry.size == (status.st_size if entry.kind == "f" else 0)
        and entry.mtime == status.st_mtime_ns
        and entry.device == status.st_dev
        and entry.kind == KINDS[status.st_mode & _TYPE]
        and entry.mode == status.st_mode & _PERMISSIONS
    )


def is_same(one: Entry | None, other: Entry | None) -> bool:
    """Whether two states of a path are the same but for times and place: kind, content, permissions, owner."""
    if one is None or other is None:
        return one is other
    if one.kind != other.kind or (one.uid, one.gid) != (other.uid, other.gid):
        return False
    if one.kind != "l" and one.mode != other.mode:
        return False
    if (one.xattrs or None) != (other.xattrs or None):
        return False
    return one.content == other.content and one.size == other.size


class Change(NamedTuple):
    """What a run did to one path. None: there was, or is, nothing."""

    path: str
    before: Entry | None
    after: Entry | None

    @property
    def status(self) -> str:
        """A, M, D, or T."""
        if self.before is None:
            return ADDED
        if self.after is None:
            return DELETED
        return TOUCHED if is_same(self.before, self.after) else MODIFIED

    @property
    def is_shown(self) -> bool:
        """Whether it is worth telling: times alone, and the times of directories, are not."""
        return self.status != TOUCHED


def differences(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> list[Change]:
    """What differs, by path. An entry that both maps share is the same without a look."""
    found = []
    for path in sorted(before.keys() | after.keys()):
        one, other = before.get(path), after.get(path)
        if one is other:
            continue
        if one is not None and other is not None and one.mtime == other.mtime and is_same(one, other):
            continue
        found.append(Change(path, one, other))
    return found
