# SPDX-License-Identifier: MIT
"""Files of a request into a workspace."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Mapping

from agentbox.errors import InvalidRequestError
from agentbox.linux.credentials import acting_as
from agentbox.workspace.descent import Parents
from agentbox.workspace.faults import workspace_fault
from agentbox.workspace.names import checked_path, shown
from agentbox.workspace.tree import Tree

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def place_files(tree: Tree, files: Mapping[str, bytes]) -> None:
    """Write each file whole (mode 0644), making the directories above it (0755) and replacing an existing file.

    Raises InvalidRequestError for a bad path and where a component is a link or no directory, WorkspaceError when the
    disk is full or a file cannot be written. All paths are checked before the first file is written.
    """
    checked = [(checked_path(path), path, content) for path, content in files.items()]
    with acting_as(tree.uid, tree.gid), Parents(tree.fd) as parents:
        for parts, path, content in checked:
            try:
                write_file(parents.at(parts[:-1]), parts[-1], content)
            except OSError as error:
                if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.EEXIST, errno.EISDIR}:
                    raise InvalidRequestError(
                        f"path '{shown(path)}' cannot be written: a part of it is a link, or a file where a directory "
                        "is needed, or a directory where a file is",
                        hint="choose another path, or leave out one of the files that are in each other's way",
                        path=path,
                    ) from error
                raise workspace_fault(error, path, "written") from error


def write_file(dir_fd: int, name: str, content: bytes, mode: int = 0o644) -> None:
    """Write a new file, in place of an existing regular one. Raises OSError; EEXIST for a link or directory."""
    with contextlib.suppress(FileNotFoundError):
        # A new inode, so that nothing is written through a hard link and no old mode stays.
        if stat.S_ISREG(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=dir_fd)
    fd = os.open(name, _NEW, 0o600, dir_fd=dir_fd)
    try:
        write_all(fd, content)
        os.fchmod(fd, mode)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=dir_fd)
        raise
    finally:
        os.close(fd)


def write_all(fd: int, content: bytes) -> None:
    """Write every byte. Raises OSError."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]
