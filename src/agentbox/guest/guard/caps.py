# SPDX-License-Identifier: MIT
"""Caps on what lies below a grant (`write: ./out max=10MB`): every way of writing counts with the size it leads to.

A write has no audit event, so where a policy has caps, files below them are opened as files that ask before they grow,
and the functions that write to descriptors ask too. What a started program writes is counted when the next file is
opened.
"""

from __future__ import annotations

import posix
from posix import fstat, lstat, scandir

from .answers import Answers
from .effects import Effects, refusal
from .matching import covers
from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_SCANNED = 100_000
# lseek from where the descriptor stands.
_FROM_HERE = 1


@sealed
class Caps:
    """The capped files of one process. Without a cap in the policy nothing of it is in the way."""

    def __init__(self, answers: Answers, effects: Effects) -> None:
        self._answers = answers
        self._effects = effects
        self.active = bool(answers.caps)
        self._descriptors: dict[int, Any] = {}
        # Paths that `services` is opening, by identity; other ways to open below a cap are refused.
        self.expected: dict[int, Any] = {}

    def opens(self, given: Any, path: str, found: Any, truncates: bool) -> Any:
        """The refusal of opening a path for writing, if any; `given` is the very object of the call."""
        if not self.is_capped(path):
            return None
        if self.expected.get(id(given)) is not given:
            return refusal(f"agentbox: {path} has a cap (max=); open it with open() or os.open()")
        self._scan()
        if truncates and found is not None:
            self._answers.write(path, 0, _identity(found))
        return None

    def moves(self, source: str, target: str) -> Any:
        """The refusal of a rename that brings a file below a cap, if any."""
        if not self.is_capped(target):
            return None
        try:
            found = lstat(source)
        except OSError:
            return None
        self._scan()
        return self._ask(target, found.st_size, _identity(found))

    def grows(self, path: str, size: int) -> Any:
        """The refusal of a size, if any."""
        if not self.is_capped(path):
            return None
        self._scan()
        try:
            return self._ask(path, size, _identity(lstat(path)))
        except OSError:
            return None

    def grows_descriptor(self, descriptor: int, size: int) -> Any:
        """The refusal of a size of an open file, if any."""
        path = self.capped_path(descriptor)
        return None if path is None else self._ask(path, size, _identity(fstat(descriptor)))

    def is_capped(self, path: str) -> bool:
        """Whether a resolved path lies below a cap."""
        return self.active and any(covers(target, path) for target in self._answers.caps)

    def watch(self, descriptor: int, path: str) -> None:
        """A descriptor was opened for writing a capped file; `path` is resolved."""
        found = fstat(descriptor)
        self._descriptors[descriptor] = (path, found.st_dev, found.st_ino)

    def capped_path(self, descriptor: Any) -> Any:
        """The capped file that a descriptor writes to, None when there is none."""
        known = self._descriptors.get(descriptor)
        if known is None:
            return None
        try:
            now = fstat(descriptor)
        except OSError:
            return None
        if (now.st_dev, now.st_ino) != known[1:]:
            del self._descriptors[descriptor]
            return None
        return known[0]

    def before_write(self, descriptor: int, count: int, offset: Any = None) -> None:
        """Raise when writing `count` bytes would pass a cap; without `offset` at the descriptor's place."""
        path = self.capped_path(descriptor)
        if path is None:
            return
        found = fstat(descriptor)
        if offset is None:
            appends = _flags(descriptor) & posix.O_APPEND
            offset = found.st_size if appends else posix.lseek(descriptor, 0, _FROM_HERE)
        refused = self._ask(path, max(found.st_size, offset + count), _identity(found))
        if refused is not None:
            raise refused

    def _ask(self, path: str, size: int, identity: str) -> Any:
        allowed = self._answers.write(path, size, identity)[0]
        return None if allowed else self._effects.deny("write", path)

    def _scan(self) -> None:
        """Count what lies below the caps now, whoever wrote it."""
        self._answers.forget_sizes()
        waiting = [target[1] for target in self._answers.caps]
        seen = 0
        while waiting and seen < _MAX_SCANNED:
            directory = waiting.pop()
            try:
                entries = list(scandir(directory))
            except NotADirectoryError:
                found = lstat(directory)
                self._answers.seed_size(directory, _identity(found), found.st_size)
                continue
            except OSError:
                continue
            for entry in entries:
                seen += 1
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    continue
                try:
                    found = lstat(entry.path)
                except OSError:
                    continue
                self._answers.seed_size(entry.path, _identity(found), found.st_size)


def _identity(found: Any) -> str:
    return f"{found.st_dev}:{found.st_ino}"


def _flags(descriptor: int) -> int:
    """The flags that a descriptor was opened with."""
    try:
        file = posix.open(f"/proc/self/fdinfo/{descriptor}", posix.O_RDONLY)
    except OSError:
        return 0
    try:
        for line in posix.read(file, 4096).splitlines():
            if line.startswith(b"flags:"):
                return int(line.split()[1], 8)
    finally:
        posix.close(file)
    return 0
