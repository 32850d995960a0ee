# SPDX-License-Identifier: MIT
"""A sandbox's workspace as the host sees it: for boxes that are gone, or do not answer. Never follows a link."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from agentbox.errors import WorkspaceError
from agentbox.records import dataclass
from agentbox.workspace.descent import EntryLimitError, open_regular, walk

_MAX_ENTRIES = 1_000_000
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was copied, in bytes and files, and what was left out with the reason, the first hundred."""

    files: int
    size_bytes: int
    left_out: tuple[str, ...]


def fetch(workspace: str, to: str) -> Fetched:
    """Copy regular files and directories to `to`, which must not exist. Raises OSError, WorkspaceError."""
    left_out: list[str] = []
    files = size = 0
    os.mkdir(to, 0o755)
    base = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for entry in walk(base, limit=_MAX_ENTRIES, warn=left_out.append):
            local = str(Path(to, entry.path))
            if stat.S_ISDIR(entry.status.st_mode):
                os.mkdir(local, 0o755)
            elif stat.S_ISREG(entry.status.st_mode):
                try:
                    source = open_regular(entry.dir_fd, entry.name)
                except OSError as error:
                    left_out.append(f"{entry.path}: {error}")
                    continue
                size += _copy(source, local, entry.status.st_mode & 0o777)
                files += 1
            else:
                left_out.append(f"{entry.path}: no file and no directory")
    except EntryLimitError:
        raise WorkspaceError(
            f"{workspace} holds more than {_MAX_ENTRIES} entries", hint="copy it by other means"
        ) from None
    finally:
        os.close(base)
    return Fetched(files, size, tuple(left_out[:100]))


def copy_new(path: str, to: str) -> int:
    """Copy a file of the host's own to a new one; how many bytes. Raises OSError."""
    return _copy(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), to, 0o644)


def _copy(source: int, local: str, mode: int) -> int:
    size = 0
    try:
        target = os.open(local, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode | 0o600)
        try:
            while piece := os.read(source, _PIECE_BYTES):
                view = memoryview(piece)
                while view:
                    view = view[os.write(target, view) :]
                size += len(piece)
        finally:
            os.close(target)
    finally:
        os.close(source)
    return size
