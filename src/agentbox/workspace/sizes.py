# SPDX-License-Identifier: MIT
"""How many bytes lie below a place of a guest's tree, while its programs run."""

from __future__ import annotations

import os
import stat

from agentbox.linux.credentials import acting_as
from agentbox.workspace.descent import EntryLimitError, Parents, walk
from agentbox.workspace.tree import Tree

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def sizes_below(tree: Tree, path: str, max_entries: int) -> dict[str, tuple[str, int]] | None:
    """The files at and below `path`, which is relative to the tree: `DEVICE:INODE` -> (path, bytes).

    A file with several names is there once. What is not there, or cannot be entered, is left out; no link is followed.
    None when there are more than `max_entries`.
    """
    parts = tuple(part for part in path.split("/") if part)
    found: dict[str, tuple[str, int]] = {}
    with acting_as(tree.uid, tree.gid):
        try:
            base = _opened(tree.fd, parts, found)
        except OSError:
            return found
        if base is None:
            return found
        prefix = "".join(f"{part}/" for part in parts)
        try:
            for entry in walk(base, limit=max_entries, warn=lambda _: None):
                if stat.S_ISREG(entry.status.st_mode):
                    found[_identity(entry.status)] = (prefix + entry.path, entry.status.st_size)
        except EntryLimitError:
            return None
        except OSError:
            # The top itself went away while it was read.
            return found
        finally:
            os.close(base)
    return found


def _opened(top: int, parts: tuple[str, ...], found: dict[str, tuple[str, int]]) -> int | None:
    """A descriptor of the directory `parts`; None where a file lies there, which is put into `found`."""
    if not parts:
        return os.open(".", _DIRECTORY, dir_fd=top)
    with Parents(top, made=_missing) as parents:
        above = parents.at(parts[:-1])
        status = os.stat(parts[-1], dir_fd=above, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            return os.open(parts[-1], _DIRECTORY, dir_fd=above)
        if stat.S_ISREG(status.st_mode):
            found[_identity(status)] = ("/".join(parts), status.st_size)
    return None


def _missing() -> None:
    raise FileNotFoundError


def _identity(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}"
