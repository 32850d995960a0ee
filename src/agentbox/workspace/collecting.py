# SPDX-License-Identifier: MIT
"""Files out of a workspace, chosen by patterns."""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Sequence

from agentbox.errors import InvalidRequestError
from agentbox.linux.credentials import acting_as
from agentbox.workspace.descent import Entry, EntryLimitError, open_regular, walk
from agentbox.workspace.faults import Warnings, workspace_fault
from agentbox.workspace.names import checked_path, shown
from agentbox.workspace.tree import Tree

MAX_ENTRIES = 100_000
MAX_PATTERNS = 100
_CHUNK = 1 << 20


class Pattern:
    """A glob over relative paths: `*`, `?` and `[..]` inside a part (dots included), `**` for any number of parts.

    A last `**` matches every file below. Raises InvalidRequestError for an absolute pattern or one with `..`.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        parts = checked_path(text)
        if parts[-1] == "**":
            parts = (*parts, "*")
        self._parts = [None if part == "**" else re.compile(fnmatch.translate(part)) for part in parts]
        self.start = self._skip({0})

    def after(self, states: frozenset[int], name: str) -> frozenset[int]:
        """The positions in the pattern that can follow one more part of a path; empty when nothing can match."""
        return self._skip({state for start in states for state in self._next(start, name)})

    def complete(self, states: frozenset[int]) -> bool:
        """Whether a path that led to `states` matches."""
        return len(self._parts) in states

    def _next(self, state: int, name: str) -> Iterator[int]:
        if state < len(self._parts):
            part = self._parts[state]
            if part is None:
                yield state
            elif part.match(name):
                yield state + 1

    def _skip(self, states: set[int]) -> frozenset[int]:
        for state in sorted(states):
            while state < len(self._parts) and self._parts[state] is None:
                state += 1
                states.add(state)
        return frozenset(states)


class _Matcher:
    """Patterns followed along a walk: for each level the positions that the directory there has led to."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._levels = [[(pattern, pattern.start) for pattern in patterns]]
        self._here: list[tuple[Pattern, frozenset[int]]] = []

    def look(self, entry: Entry) -> list[str]:
        """The texts of the patterns that match the entry, which is the next one of the walk."""
        del self._levels[entry.path.count("/") + 1 :]
        steps = ((pattern, pattern.after(states, entry.name)) for pattern, states in self._levels[-1])
        self._here = [(pattern, states) for pattern, states in steps if states]
        return [pattern.text for pattern, states in self._here if pattern.complete(states)]

    def descend(self) -> bool:
        """Whether a file below the entry that was looked at last can match."""
        self._levels.append(self._here)
        return bool(self._here)


class _Basket:
    def __init__(self, max_file_bytes: int, max_total_bytes: int, warnings: Warnings) -> None:
        self.files: dict[str, bytes] = {}
        self._max_file_bytes = max_file_bytes
        self._left = max_total_bytes
        self._max_total_bytes = max_total_bytes
        self._warnings = warnings

    def take(self, entry: Entry) -> None:
        name = shown(entry.path)
        try:
            entry.path.encode("utf-8")
        except UnicodeEncodeError:
            self._warnings.add(f"{name}: not returned, its name is not UTF-8")
            return
        if not self._fits(name, entry.status.st_size):
            return
        try:
            fd = open_regular(entry.dir_fd, entry.name)
            try:
                content = _read_up_to(fd, min(self._max_file_bytes, self._left) + 1)
            finally:
                os.close(fd)
        except OSError as error:
            self._warnings.add(f"{name}: not returned: {error.strerror or error}")
            return
        if self._fits(name, len(content)):
            self.files[entry.path] = content
            self._left -= len(content)

    def _fits(self, name: str, size: int) -> bool:
        if size > self._max_file_bytes:
            self._warnings.add(f"{name}: not returned, {size} bytes is over the cap of {self._max_file_bytes} per file")
        elif size > self._left:
            self._warnings.add(
                f"{name}: not returned, {size} bytes would pass the cap of {self._max_total_bytes} for all files"
            )
        else:
            return True
        return False


def collect_files(
    tree: Tree,
    patterns: Sequence[str],
    max_file_bytes: int,
    max_total_bytes: int,
    *,
    exclude: frozenset[str] = frozenset(),
) -> tuple[dict[str, bytes], list[str]]:
    """The regular files that the patterns name, in order of path, and warnings about what was left out.

    `exclude` holds names at the top of the tree that are never returned. Links are not followed and not returned.
    Raises InvalidRequestError for a bad pattern or over 100 of them, WorkspaceError when the tree cannot be read.
    """
    if len(patterns) > MAX_PATTERNS:
        raise InvalidRequestError(f"{len(patterns)} patterns are over the limit of {MAX_PATTERNS}")
    wanted = [Pattern(text) for text in dict.fromkeys(patterns)]
    unmatched = {pattern.text for pattern in wanted}
    warnings = Warnings()
    basket = _Basket(max_file_bytes, max_total_bytes, warnings)

    matcher = _Matcher(wanted)

    def leads(entry: Entry) -> bool:
        return entry.path not in exclude and matcher.descend()

    with acting_as(tree.uid, tree.gid):
        try:
            for entry in walk(tree.fd, limit=MAX_ENTRIES, warn=warnings.add, descend=leads) if wanted else ():
                hits = matcher.look(entry)
                if not hits or stat.S_ISDIR(entry.status.st_mode) or entry.path in exclude:
                    continue
                unmatched.difference_update(hits)
                if stat.S_ISREG(entry.status.st_mode):
                    basket.take(entry)
                else:
                    warnings.add(f"{shown(entry.path)}: not returned, it is no regular file")
        except EntryLimitError:
            warnings.add(f"the workspace has over {MAX_ENTRIES} entries; the files after those were not looked at")
        except OSError as error:
            raise workspace_fault(error, "workspace", "read") from error
    notes = warnings.all()
    notes += [f"no file matches '{shown(text)}'" for text in sorted(unmatched)[:50]]
    return basket.files, notes


def _read_up_to(fd: int, limit: int) -> bytes:
    chunks = []
    while limit > 0 and (chunk := os.read(fd, min(_CHUNK, limit))):
        chunks.append(chunk)
        limit -= len(chunk)
    return b"".join(chunks)
