# SPDX-License-Identifier: MIT
"""Writing the archive of a workspace in constant memory; `archive` has the rules."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from agentbox.errors import QuotaExceededError, WorkspaceError
from agentbox.linux.credentials import acting_as
from agentbox.workspace.descent import Entry, EntryLimitError, open_regular, walk
from agentbox.workspace.faults import FULL, Warnings, workspace_fault
from agentbox.workspace.names import shown
from agentbox.workspace.tar_format import END, Kind, Member, encode, padding
from agentbox.workspace.tree import Tree

MAX_ENTRIES = 100_000
_CHUNK = 256 << 10
# Level 1: a snapshot waits for the compressor, and what agents leave behind is small or compressed already.
_LEVEL = 1


@dataclass(frozen=True, slots=True)
class ArchiveSummary:
    """What an archive holds: entries, the sum of the sizes of its files, and what was left out of it."""

    entries: int
    unpacked_bytes: int
    warnings: tuple[str, ...] = ()


def write_archive(
    tree: Tree,
    out_file: BinaryIO,
    *,
    exclude: frozenset[str] = frozenset(),
    max_bytes: int,
    max_entries: int = MAX_ENTRIES,
) -> ArchiveSummary:
    """Write the tree to `out_file`, without the names in `exclude` at its top.

    Raises QuotaExceededError before anything is compressed when the files have over `max_bytes` (holes count) or there
    are over `max_entries`, WorkspaceError when the target is full or a file changes while it is read. The caller
    throws a half-written file away.
    """
    limits = _Limits(max_bytes, max_entries)
    with acting_as(tree.uid, tree.gid):
        _measure(tree.fd, exclude, limits)
        packer = _Packer(out_file)
        writer = _Writer(packer, limits)
        for entry in _entries(tree.fd, exclude, limits, writer.warnings.add):
            writer.add(entry)
        packer.finish()
    return ArchiveSummary(writer.entries, writer.total_bytes, tuple(writer.warnings.all()))


@dataclass(frozen=True, slots=True)
class _Limits:
    max_bytes: int
    max_entries: int

    def check_bytes(self, total: int) -> None:
        if total > self.max_bytes:
            raise QuotaExceededError(
                f"the workspace has over {self.max_bytes} bytes, the most that a snapshot may hold unpacked "
                "(the holes of sparse files count)",
                hint="delete large files at the end of the run, or raise AGENTBOX_SNAPSHOT_MAX_BYTES",
                max_bytes=self.max_bytes,
            )

    def too_many(self) -> QuotaExceededError:
        return QuotaExceededError(
            f"the workspace has over {self.max_entries} files and directories, the most that a snapshot may hold",
            hint="delete what need not be kept at the end of the run",
            max_entries=self.max_entries,
        )


def _entries(fd: int, exclude: frozenset[str], limits: _Limits, warn: Callable[[str], None]) -> Iterator[Entry]:
    def wanted(entry: Entry) -> bool:
        return entry.path not in exclude

    try:
        for entry in walk(fd, limit=limits.max_entries + len(exclude), warn=warn, descend=wanted):
            if wanted(entry):
                yield entry
    except EntryLimitError:
        raise limits.too_many() from None
    except OSError as error:
        raise workspace_fault(error, "workspace", "read") from error


def _measure(fd: int, exclude: frozenset[str], limits: _Limits) -> None:
    total = 0
    linked: set[tuple[int, int]] = set()
    for entry in _entries(fd, exclude, limits, lambda _: None):
        status = entry.status
        if not stat.S_ISREG(status.st_mode):
            continue
        if status.st_nlink > 1:
            if (status.st_dev, status.st_ino) in linked:
                continue
            linked.add((status.st_dev, status.st_ino))
        total += status.st_size
        limits.check_bytes(total)


class _Packer:
    """Compresses into the target file."""

    def __init__(self, out_file: BinaryIO) -> None:
        self._out_file = out_file
        self._deflate = zlib.compressobj(_LEVEL, wbits=31)

    def write(self, data: bytes) -> None:
        self._put(self._deflate.compress(data))

    def finish(self) -> None:
        self._put(self._deflate.compress(END) + self._deflate.flush())

    def _put(self, packed: bytes) -> None:
        try:
            if packed:
                self._out_file.write(packed)
        except OSError as error:
            raise WorkspaceError(
                f"the snapshot cannot be stored: {error.strerror}",
                hint="make room where AGENTBOX_SNAPSHOT_DIR lies" if error.errno in FULL else "",
                errno=error.errno,
            ) from error


_LEFT_OUT = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


class _Writer:
    def __init__(self, packer: _Packer, limits: _Limits) -> None:
        self.entries = 0
        self.total_bytes = 0
        self.warnings = Warnings()
        self._packer = packer
        self._limits = limits
        self._linked: dict[tuple[int, int], bytes] = {}

    def add(self, entry: Entry) -> None:
        kind = stat.S_IFMT(entry.status.st_mode)
        if kind == stat.S_IFREG:
            self._add_file(entry)
        elif kind == stat.S_IFDIR:
            self._put(entry, Kind.DIRECTORY)
        elif kind == stat.S_IFLNK:
            try:
                text = os.readlink(entry.name, dir_fd=entry.dir_fd)
            except OSError:
                # It is no link any more: something still runs in the tree.
                self.warnings.add(f"{shown(entry.path)}: left out, it changed while it was read")
            else:
                self._put(entry, Kind.SYMLINK, link=os.fsencode(text))
        else:
            self.warnings.add(f"{shown(entry.path)}: left out, it is a {_LEFT_OUT.get(kind, 'special file')}")

    def _add_file(self, entry: Entry) -> None:
        identity = (entry.status.st_dev, entry.status.st_ino)
        if identity in self._linked:
            self._put(entry, Kind.HARD_LINK, link=self._linked[identity])
            return
        try:
            fd = open_regular(entry.dir_fd, entry.name)
        except OSError as error:
            self.warnings.add(f"{shown(entry.path)}: left out: {error.strerror or 'it changed while it was read'}")
            return
        try:
            head = os.read(fd, _CHUNK)
            size = len(head) if len(head) < _CHUNK else max(len(head), os.fstat(fd).st_size)
            self.total_bytes += size
            self._limits.check_bytes(self.total_bytes)
            self._put(entry, Kind.FILE, size=size)
            self._copy(fd, head, size, entry)
        except OSError as error:
            raise workspace_fault(error, entry.path, "read") from error
        finally:
            os.close(fd)
        if entry.status.st_nlink > 1:
            self._linked[identity] = os.fsencode(entry.path)

    def _copy(self, fd: int, head: bytes, size: int, entry: Entry) -> None:
        self._packer.write(head)
        left = size - len(head)
        while left:
            chunk = os.read(fd, min(_CHUNK, left))
            if not chunk:
                raise WorkspaceError(
                    f"{shown(entry.path)}: became shorter while the snapshot was taken",
                    hint="take the snapshot when nothing writes to the workspace",
                )
            self._packer.write(chunk)
            left -= len(chunk)
        self._packer.write(padding(size))

    def _put(self, entry: Entry, kind: Kind, *, size: int = 0, link: bytes = b"") -> None:
        status = entry.status
        self.entries += 1
        self._packer.write(
            encode(
                Member(
                    os.fsencode(entry.path),
                    kind,
                    size=size,
                    mode=status.st_mode & (0o1777 if kind is Kind.DIRECTORY else 0o777),
                    mtime_ns=status.st_mtime_ns,
                    link=link,
                )
            )
        )
