# SPDX-License-Identifier: MIT
"""What a run wrote that runs later, outside: hooks, shell and editor start files, CI, settings of coding agents.

The host looks by itself after the run, at what lies below write grants, whatever program wrote it and whatever it did
to file times: a program can set when a file was modified, but not when its entry last changed.
"""

from __future__ import annotations

import os
import stat
import time

from agentbox.policy.protected import is_noticed, why_protected
from agentbox.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAX_ENTRIES = 200_000
_MAX_SECONDS = 1.0
_MAX_FOUND = 1000
_MAX_CHANGED = 1000
# The clock of a file system is a little behind.
_BEHIND_SECONDS = 0.02
_MAX_NAMED = 20
# Thousands of files that nothing starts from.
_PASSED_OVER = ("node_modules", "__pycache__")
_BY_NAME = "somebody runs it by name"


@dataclass(frozen=True, slots=True)
class StartupFile:
    """A file, or a directory that came with all its files, and why it matters."""

    path: str
    why: str


class StartupFiles:
    """Made when a run begins, asked when it has ended. `places` are the paths that it may write, `own` directories of
    the host's in them."""

    def __init__(self, places: Iterable[str], own: Iterable[str] = ()) -> None:
        self._places = _outermost(places)
        self._own = frozenset(own)
        self._since = time.time() - _BEHIND_SECONDS
        # What was written just before the run is none of what it changed.
        self._changed_since = self._since + _BEHIND_SECONDS / 2
        self._before = {
            (found.st_dev, found.st_ino)
            for place in self._places
            for _, found in _entries(place)
            if stat.S_ISDIR(found.st_mode)
        }
        self.complete = True
        # What was found to have come or changed since, whatever its name; None for too much.
        self.changed: list[str] | None = []

    def written(self) -> list[StartupFile]:
        """What was made, changed or renamed to such a name since, sorted. Sets `complete`: whether all was looked at
        within the bounds; and `changed`."""
        found: list[StartupFile] = []
        waiting = list(self._places)
        seen = 0
        until = time.monotonic() + _MAX_SECONDS
        for place in self._places:
            self._look(place, found)
        while waiting:
            if seen > _MAX_ENTRIES or len(found) >= _MAX_FOUND or time.monotonic() > until:
                self.complete = False
                break
            directory = waiting.pop()
            for entry, status in _entries(directory):
                seen += 1
                if entry.path in self._own:
                    continue
                if status.st_ctime >= self._changed_since:
                    self._note(entry.path)
                why = why_protected(entry.path) or (_BY_NAME if is_noticed(entry.path) else "")
                if not stat.S_ISDIR(status.st_mode):
                    if why and status.st_ctime >= self._since:
                        found.append(StartupFile(entry.path, why))
                    continue
                if why and self._came(status):
                    found.append(StartupFile(entry.path, why))
                elif entry.name not in _PASSED_OVER and not entry.path.endswith("/.git/objects"):
                    waiting.append(entry.path)
        return sorted(found, key=lambda one: one.path)

    def _look(self, place: str, found: list[StartupFile]) -> None:
        """A grant may be for a single file."""
        try:
            status = os.lstat(place)
        except OSError:
            return
        if status.st_ctime >= self._changed_since:
            self._note(place)
        why = why_protected(place)
        if why and not stat.S_ISDIR(status.st_mode) and status.st_ctime >= self._since:
            found.append(StartupFile(place, why))

    def _note(self, path: str) -> None:
        if self.changed is None or len(self.changed) >= _MAX_CHANGED:
            self.changed = None
        else:
            self.changed.append(path)

    def _came(self, status: os.stat_result) -> bool:
        """Whether a directory was renamed to its name: that changes its entry and not its content."""
        known = (status.st_dev, status.st_ino) in self._before
        return not known and status.st_mtime < self._since <= status.st_ctime


def in_words(found: list[StartupFile], directory: str, *, complete: bool) -> list[str]:
    """What a run's summary says of them, paths relative to a directory."""
    lines = [f"{_shown(one.path, directory)} was written: {one.why}" for one in found[:_MAX_NAMED]]
    if len(found) > _MAX_NAMED:
        lines.append(f"{len(found) - _MAX_NAMED} more files that run later were written; the trace names them")
    if not complete:
        lines.append("there are too many files to look for all that run later: look at what was written yourself")
    return lines


def _shown(path: str, directory: str) -> str:
    relative = path[len(directory) + 1 :] if path.startswith(directory + "/") else path
    return relative.encode("utf-8", "backslashreplace").decode()


def _outermost(places: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for place in sorted(set(places)):
        if not any(place == other or place.startswith(other.rstrip("/") + "/") for other in kept):
            kept.append(place)
    return kept


def _entries(directory: str) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    """What is in a directory, with its lstat; nothing where that cannot be read."""
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    yield entry, entry.stat(follow_symlinks=False)
                except OSError:
                    continue
    except OSError:
        return
