# SPDX-License-Identifier: MIT
"""Taking a checkpoint: an entry for each path, and the contents that no earlier one keeps."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping

from agentbox.workspace.checkpoint_content import ContentWriter
from agentbox.workspace.checkpoint_entries import Entry, is_unchanged
from agentbox.workspace.checkpoint_files import FORMAT, dump, write_file
from agentbox.workspace.checkpoint_reading import entry_of, read_file, xattrs_of
from agentbox.workspace.checkpoint_scan import Found, Scope, walk
from agentbox.workspace.checkpoint_times import LASTING, Trust

_TYPE, _REGULAR = 0o170000, 0o100000


def fill(
    own: int,
    name: str,
    scope: Scope,
    cache: Mapping[str, Entry],
    *,
    made: frozenset[str] = frozenset(),
    about: Mapping[str, str],
) -> dict[str, Entry]:
    """Write the files of a checkpoint called `name` into the directory of the descriptor `own`: contents, the list of
    all entries, which is returned, and last the details, with what is said `about` it. Entries of files that were not
    changed since come from the `cache`; what is empty of `made` counts as not there. Raises CheckpointError, OSError.
    """
    trust = Trust()
    writer = ContentWriter(own, name)
    entries: dict[str, Entry] = {}
    try:
        for found in walk(scope):
            before = cache.get(found.path)
            if before is not None and before.sure >= LASTING and is_unchanged(before, found.status):
                entries[found.path] = before
                continue
            with contextlib.suppress(FileNotFoundError):
                entries[found.path] = _kept(found, before, writer, trust)
        writer.finish()
    finally:
        writer.close()
    _leave_out(entries, made)
    text = dump({"format": FORMAT, "entries": entries})
    write_file(own, "before", text)
    details = {
        "format": FORMAT,
        "id": name,
        **about,
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


def _kept(found: Found, before: Entry | None, writer: ContentWriter, trust: Trust) -> Entry:
    """The entry of a path, its content kept. Raises FileNotFoundError, CheckpointError, OSError."""
    if found.status.st_mode & _TYPE != _REGULAR:
        return entry_of(found, None)
    may_be_known = before is not None and before.size == found.status.st_size
    reading = read_file(found, large=may_be_known)
    try:
        entry = Entry.of(reading.status, reading.digest)
        if before is not None and (before.content, before.size) == (entry.content, entry.size) and before.file:
            file, offset = before.file, before.offset
        else:
            file, offset, digest = writer.keep(reading)
            entry = entry._replace(content=digest)
        now = os.fstat(reading.fd)
        is_stable = reading.is_stable and now.st_ctime_ns == entry.ctime
        sure = trust.in_times_of(found.path, entry) if is_stable else 0
        return entry._replace(file=file, offset=offset, sure=sure, xattrs=xattrs_of(reading.fd))
    finally:
        os.close(reading.fd)


def _leave_out(entries: dict[str, Entry], made: frozenset[str]) -> None:
    """What was made for the run's own sake was not there before it, unless somebody has put something there."""
    for path in sorted(made, key=len, reverse=True):
        entry = entries.get(path)
        if entry is None or (entry.kind == "f" and entry.size):
            continue
        if entry.kind == "d" and any(other.startswith(path + "/") for other in entries):
            continue
        del entries[path]
