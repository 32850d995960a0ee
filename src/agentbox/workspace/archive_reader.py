# SPDX-License-Identifier: MIT
"""Reading an archive into a workspace, trusting nothing in it; `archive` has the rules."""

from __future__ import annotations

import errno
import os
from typing import BinaryIO

from agentbox.linux.credentials import acting_as
from agentbox.workspace.archive_writer import MAX_ENTRIES, ArchiveSummary
from agentbox.workspace.descent import Parents, chmod_no_follow
from agentbox.workspace.faults import Warnings, workspace_fault
from agentbox.workspace.gzip_source import GzipSource
from agentbox.workspace.links import LinkMap
from agentbox.workspace.names import path_fault, shown
from agentbox.workspace.placing import write_all
from agentbox.workspace.tar_format import Kind, Member, read_members, unsafe
from agentbox.workspace.tree import Tree

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 256 << 10
_ZEROS = bytes(_CHUNK)
_MAX_LINK_BYTES = 4095

Path = tuple[bytes, ...]


def read_archive(in_file: BinaryIO, tree: Tree, *, max_bytes: int, max_entries: int = MAX_ENTRIES) -> ArchiveSummary:
    """Restore an archive into the empty directory `tree`.

    Raises UnsafeArchiveError naming the member and the rule that it breaks (also: over `max_bytes` unpacked, over
    `max_entries` created, damaged), WorkspaceError when the disk is full. The tree is partial then and must be thrown
    away. The summary's warnings name the links that were left out because they lead out of the tree.
    """
    source = GzipSource(in_file)
    with acting_as(tree.uid, tree.gid):
        restore = _Restore(tree.fd, source, max_bytes, max_entries)
        with restore.parents:
            for member in read_members(source.read):
                restore.add(member)
            source.finish()
            restore.make_links()
            restore.set_directories()
    return ArchiveSummary(restore.entries, restore.total_bytes, tuple(restore.warnings.all()))


def _checked_name(name: bytes, owner: bytes, what: str) -> Path:
    plain = name.removeprefix(b"./")
    if fault := path_fault(plain):
        raise unsafe(owner, f"{what} {fault}")
    return tuple(plain.split(b"/"))


def _decoded(parts: Path) -> tuple[str, ...]:
    return tuple(os.fsdecode(part) for part in parts)


class _Restore:
    def __init__(self, fd: int, source: GzipSource, max_bytes: int, max_entries: int) -> None:
        self.entries = 0
        self.total_bytes = 0
        self.warnings = Warnings()
        self.parents = Parents(fd, made=self._count)
        self._source = source
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._members = 0
        self._current = b""
        self._files: set[Path] = set()
        self._links: dict[Path, Member] = {}
        self._directories: dict[Path, Member] = {}

    def add(self, member: Member) -> None:
        self._current = member.name
        self._members += 1
        if self._members > self._max_entries:
            raise self._too_many()
        if member.kind is Kind.DIRECTORY and member.name in (b".", b""):
            if not member.name:
                raise unsafe(member.name, "has a name that is empty or absolute")
            return
        place = _checked_name(member.name, member.name, "has a name that")
        try:
            self._make(place, member)
        except OSError as error:
            raise self._fault(error, member.name) from error

    def _make(self, place: Path, member: Member) -> None:
        if place in self._links:
            raise unsafe(member.name, "appears twice")
        parts = _decoded(place)
        if member.kind is Kind.DIRECTORY:
            self.parents.at(parts)
            self._directories[place] = member
            return
        self._count()
        dir_fd = self.parents.at(parts[:-1])
        match member.kind:
            case Kind.FILE:
                self._make_file(dir_fd, parts[-1], member)
                self._files.add(place)
            case Kind.HARD_LINK:
                self._make_hard_link(dir_fd, parts[-1], member)
                self._files.add(place)
            case Kind.SYMLINK:
                if not member.link or b"\0" in member.link or len(member.link) > _MAX_LINK_BYTES:
                    raise unsafe(member.name, "is a link whose target is empty, too long or has a NUL")
                self._links[place] = member

    def _make_file(self, dir_fd: int, name: str, member: Member) -> None:
        if member.size > self._max_bytes - self.total_bytes:
            raise unsafe(member.name, f"would make it unpack to over {self._max_bytes} bytes")
        self.total_bytes += member.size
        fd = os.open(name, _NEW, 0o600, dir_fd=dir_fd)
        try:
            left = member.size
            while left:
                chunk = self._source.read(min(left, _CHUNK))
                left -= len(chunk)
                if chunk == _ZEROS[: len(chunk)]:
                    os.lseek(fd, len(chunk), os.SEEK_CUR)
                else:
                    write_all(fd, chunk)
            os.ftruncate(fd, member.size)
            self._source.read(-member.size % 512)
            os.utime(fd, ns=(member.mtime_ns, member.mtime_ns))
            os.fchmod(fd, member.mode & 0o777)
        finally:
            os.close(fd)

    def _make_hard_link(self, dir_fd: int, name: str, member: Member) -> None:
        target = _checked_name(member.link, member.name, "is a hard link whose target")
        if target not in self._files:
            raise unsafe(member.name, f"is a hard link to '{shown(member.link)}', which is no file that came before it")
        target_parts = _decoded(target)
        here = os.dup(dir_fd)
        try:
            there = self.parents.at(target_parts[:-1])
            os.link(target_parts[-1], name, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
        finally:
            os.close(here)

    def make_links(self) -> None:
        """Make the links that were held back, except those that lead out."""
        links = LinkMap({place: member.link for place, member in self._links.items()})
        for place, member in self._links.items():
            if links.leads_out(place):
                self.entries -= 1
                self.warnings.add(
                    f"{shown(member.name)}: the link to '{shown(member.link)}' leads out of the workspace and was "
                    "left out"
                )
                continue
            parts = _decoded(place)
            try:
                dir_fd = self.parents.at(parts[:-1])
                os.symlink(os.fsdecode(member.link), parts[-1], dir_fd=dir_fd)
                times = (member.mtime_ns, member.mtime_ns)
                os.utime(parts[-1], ns=times, dir_fd=dir_fd, follow_symlinks=False)
            except OSError as error:
                raise self._fault(error, member.name) from error

    def set_directories(self) -> None:
        """Give directories their modes and times, the deepest first, when nothing is made in them any more."""
        for place in sorted(self._directories, key=len, reverse=True):
            member = self._directories[place]
            parts = _decoded(place)
            try:
                dir_fd = self.parents.at(parts[:-1])
                os.utime(parts[-1], ns=(member.mtime_ns,) * 2, dir_fd=dir_fd, follow_symlinks=False)
                chmod_no_follow(dir_fd, parts[-1], member.mode & 0o1777)
            except OSError as error:
                raise self._fault(error, member.name) from error

    def _count(self) -> None:
        self.entries += 1
        if self.entries > self._max_entries:
            raise self._too_many()

    def _too_many(self) -> Exception:
        return unsafe(self._current, f"would make it over {self._max_entries} files and directories")

    def _fault(self, error: OSError, name: bytes) -> Exception:
        if error.errno in {errno.EEXIST, errno.EISDIR}:
            return unsafe(name, "appears twice")
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            return unsafe(name, "lies below a member that is no directory")
        return workspace_fault(error, name, "restored")
