# SPDX-License-Identifier: MIT
"""Caps on what lies below a grant (`write: ./out max=10MB`): every way of writing counts with the size it leads to.

A write has no audit event, so where a policy has caps, files below them are opened as files that ask before they grow,
and the functions that write to descriptors ask too. The host counts, for all processes together; what it grants for a
file is remembered here, so that not every write is a question.
"""

from __future__ import annotations

import posix
from posix import fstat, lstat

from .answers import Answers
from .effects import Effects, refusal
from .matching import covers
from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_GRANTED = 4096
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
        # How large the host lets each file become, by identity.
        self._granted: dict[str, int] = {}
        # Paths that `services` is opening, by identity; other ways to open below a cap are refused.
        self.expected: dict[int, Any] = {}

    def forked(self) -> None:
        """In the child after a fork: what was granted is the parent's."""
        self._granted.clear()

    def opens(self, given: Any, path: str) -> Any:
        """The refusal of opening a path for writing, if any; `given` is the very object of the call."""
        if not self.is_capped(path):
            return None
        if self.expected.get(id(given)) is not given:
            return refusal(f"agentbox: {path} has a cap (max=); open it with open() or os.open()")
        return None

    def moves(self, source: str, target: str) -> Any:
        """The refusal of a rename that brings a file below a cap, if any."""
        if not self.is_capped(target):
            return None
        try:
            found = lstat(source)
        except OSError:
            return None
        return self._ask(target, found.st_size, _identity(found))

    def grows(self, path: str, size: int) -> Any:
        """The refusal of a size, if any."""
        if not self.is_capped(path):
            return None
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
        # It may be another file of the same number, or an empty one by now.
        self._granted.pop(_identity(found), None)

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
        if 0 <= size <= self._granted.get(identity, -1):
            return None
        refused, granted = self._effects.counts("fs.write", {"path": path, "identity": identity, "size": max(size, 0)})
        if len(self._granted) >= _MAX_GRANTED:
            self._granted.clear()
        if granted > 0:
            self._granted[identity] = granted
        return refused


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
