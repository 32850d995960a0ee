# SPDX-License-Identifier: MIT
"""What is at a path: an entry, and for files what is in them."""

from __future__ import annotations

import os
from typing import NamedTuple

from agentbox.workspace.checkpoint_digests import LARGE_BYTES, digest_of, digest_of_bytes, read_all
from agentbox.workspace.checkpoint_entries import KINDS, Entry, is_unchanged
from agentbox.workspace.checkpoint_scan import Found, unreadable
from agentbox.workspace.checkpoint_times import LASTING
from agentbox.workspace.descent import open_regular

_ATTEMPTS = 3
_TYPE = 0o170000


class Reading(NamedTuple):
    """A file as it was read: what fstat said, its digest, its content if it is small, its descriptor, and whether
    nobody wrote meanwhile."""

    status: os.stat_result
    digest: str
    content: bytes | None
    fd: int
    is_stable: bool


def read_file(found: Found, *, large: bool = True) -> Reading:
    """Read a regular file, again when it changed meanwhile. The caller closes the descriptor. Without `large` the
    digest of a large file is left out: who copies it takes that of the copy.

    Raises FileNotFoundError when it is gone, CheckpointError when it cannot be read.
    """
    try:
        fd = open_regular(found.dir_fd, found.name)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(found.path, error) from error
    try:
        for attempt in range(_ATTEMPTS):
            status = os.fstat(fd)
            content = None
            if status.st_size < LARGE_BYTES:
                content = read_all(fd, status.st_size)
                digest = digest_of_bytes(content)
            else:
                digest = digest_of(fd, status.st_size) if large else ""
            after = os.fstat(fd)
            stable = after.st_ctime_ns == status.st_ctime_ns and after.st_size == status.st_size
            if stable or attempt == _ATTEMPTS - 1:
                break
        return Reading(status, digest, content, fd, stable)
    except OSError as error:
        os.close(fd)
        raise unreadable(found.path, error) from error


def xattrs_of(target: int | str, *, follow: bool = False) -> dict[str, str] | None:
    """The attributes that belong to a file's content or permissions, by name, as hexadecimal text; None for none."""
    try:
        names = (
            os.listxattr(target) if follow or isinstance(target, int) else os.listxattr(target, follow_symlinks=False)
        )
        kept = {}
        for name in names:
            if name.startswith(("user.", "system.posix_acl_")) or name == "security.capability":
                kept[name] = os.getxattr(target, name).hex()
        return kept or None
    except OSError:
        # A file system without them.
        return None


def entry_of(found: Found, before: Entry | None) -> Entry:
    """The state of a path now; the very `before` where nothing was done to it since. Raises FileNotFoundError,
    CheckpointError."""
    kind = KINDS[found.status.st_mode & _TYPE]
    if before is not None and before.sure and is_unchanged(before, found.status):
        return before
    if kind == "l":
        return Entry.of(found.status, os.readlink(found.name, dir_fd=found.dir_fd))._replace(sure=LASTING)
    if kind == "d":
        return Entry.of(found.status)._replace(sure=LASTING, xattrs=xattrs_of(at_path(found)))
    if kind != "f":
        return Entry.of(found.status)._replace(sure=LASTING)
    reading = read_file(found)
    try:
        # What was read is what is compared, also when the path leads to another file by now.
        return Entry.of(reading.status, reading.digest)._replace(xattrs=xattrs_of(reading.fd))
    finally:
        os.close(reading.fd)


def at_path(found: Found) -> str:
    """A path for calls that take no directory descriptor."""
    return f"/proc/self/fd/{found.dir_fd}/{found.name}"
