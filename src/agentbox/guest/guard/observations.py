# SPDX-License-Identifier: MIT
"""What a program read, with the hash of the content: the host can tell later whether it was the same.

A file is hashed when it is opened, and again only when its size or times have changed, or changed so lately that the
clock of the file system could not show a second change.
"""

from __future__ import annotations

from posix import O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, close, fstat, read
from posix import open as open_descriptor
from time import time

from .channel import frame_of, text_of
from .effects import Effects
from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PIECE_BYTES = 1 << 20
_MAX_KEPT = 2048
_SETTLED_SECONDS = 0.05
_KIND, _REGULAR, _DIRECTORY = 0o170000, 0o100000, 0o040000
_FLAGS = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK


@sealed
class Observations:
    """Reads of one process. `own` are the paths that the guard itself is opening, by identity: no program has them."""

    def __init__(self, effects: Effects, sha256: Any) -> None:
        self._effects = effects
        self._sha256 = sha256
        self._kept: dict[str, Any] = {}
        self.own: dict[int, Any] = {}
        # By the text that a program gave: what the file was like, and the frame of its record.
        self.quick: dict[str, Any] = {}
        # In a replay, what the last read file was like and its record, where that may be sent again.
        self.ready: Any = None
        # Asked before a file is read; gives the members to add when the host must count it.
        self.once: Any = None

    def read(self, path: str, found: Any, given: str = "") -> Any:
        """Record that a resolved path is opened for reading; `given` is how the program wrote it."""
        effects = self._effects
        if found is None:
            effects.observed("fs.open_read", text_of({"path": path, "exists": False}))
            return None
        key = (found.st_ino, found.st_size, found.st_mtime, found.st_ctime, found.st_dev)
        kept = self._kept.get(path)
        if kept is not None and kept[0] == key:
            self.ready = kept
            effects.send_again(kept[1])
            return None
        kind = found.st_mode & _KIND
        if kind == _DIRECTORY:
            return None
        args: dict[str, Any] = {"path": path}
        settled = False
        if kind == _REGULAR:
            digest, settled = self._digest(path, found)
            if digest is None:
                args["size"] = found.st_size
            else:
                args["sha256"] = digest
        if self.once is not None:
            more = self.once(path, found)
            if more is not None:
                return effects.may("fs.open_read", text_of({**args, **more}))
        body = effects.body("fs.open_read", text_of(args))
        if settled and self.once is None:
            if len(self._kept) >= _MAX_KEPT or len(self.quick) >= _MAX_KEPT:
                self._kept.clear()
                self.quick.clear()
            self._kept[path] = self.ready = (key, body)
            if given and not effects.replay:
                frame = frame_of(body + text_of(effects.lanes.first().name).encode("ascii") + b"}")
                self.quick[given] = (key[0], key[3], key[1], key[2], key[4], frame)
        effects.send_again(body)
        return None

    def forked(self) -> None:
        """In the child after a fork: what was ready was ready for the parent's lane."""
        self.quick.clear()

    def counts(self, path: str, found: Any) -> Any:
        """The refusal of opening a resolved path that is counted, both for reading and for writing, if any."""
        more = self.once(path, found) if self.once is not None else None
        return None if more is None else self._effects.may("fs.open_read", text_of({"path": path, **more}))

    def read_own(self, path: str) -> bytes:
        """The start of a file that the guard itself needs. Raises OSError."""
        descriptor = self._open(path)
        try:
            return read(descriptor, 1 << 16)
        finally:
            close(descriptor)

    def open_again(self, descriptor: int) -> int:
        """Another descriptor, for reading, of a file that is open already. Raises OSError."""
        path = f"/proc/self/fd/{descriptor}"
        self.own[id(path)] = path
        try:
            return open_descriptor(path, O_RDONLY | O_CLOEXEC)
        finally:
            del self.own[id(path)]

    def _open(self, path: str) -> int:
        # A string that nobody else has: the audit event of this very call is recognised by it.
        path = "/" + path
        self.own[id(path)] = path
        try:
            return open_descriptor(path, _FLAGS)
        finally:
            del self.own[id(path)]

    def _digest(self, path: str, found: Any) -> Any:
        """The hash of a regular file, None when it cannot be read; and whether it may be kept."""
        settled = time() - max(found.st_mtime, found.st_ctime) > _SETTLED_SECONDS
        try:
            descriptor = self._open(path)
        except OSError:
            return None, False
        try:
            now = fstat(descriptor)
            if (now.st_ino, now.st_size) != (found.st_ino, found.st_size):
                settled = False
            digest = self._sha256(read(descriptor, _PIECE_BYTES))
            left = now.st_size - _PIECE_BYTES
            # No further than it reaches now: something may be writing to it without an end.
            while left > 0:
                data = read(descriptor, min(left, _PIECE_BYTES))
                if not data:
                    break
                digest.update(data)
                left -= len(data)
        except OSError:
            return None, False
        finally:
            close(descriptor)
        return digest.hexdigest(), settled
