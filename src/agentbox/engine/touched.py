# SPDX-License-Identifier: MIT
"""The granted files that a recorded run writes to: what each was before, kept so that a replay can begin from there,
and what it was in the end, to compare with.

Guards ask before they change a file, so what was there is still there then. What other programs change is found by
looking at all granted files before and after each of them, as long as they are few enough; what code that no guard sees
changed, at the end. A file that comes out as it was is told like any other: when a replay begins it may be something
else.
"""

from __future__ import annotations

import os
import stat
import time

from agentbox.light import asyncio, contextlib, digests
from agentbox.policy.paths import is_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from agentbox.engine.keeping import Keeping
    from agentbox.trace import frames

# Of a larger file the former content is not kept: a run would wait for it.
MAX_KEPT_FILE_BYTES = 16 << 20
MAX_TOUCHED = 20_000
MAX_LOOKED_AT = 20_000
_CHUNK = 1 << 20
# The clock of a file system is a little behind.
_BEHIND_NS = 20_000_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_CHANGE = frozenset({"fs.open_read", "fs.read_text"})
# What SQLite puts beside a database without asking anybody.
_BESIDE_DATABASES = ("-journal", "-wal", "-shm")

# Device, number, size, mode, times.
_Facts = tuple[int, ...]


class Touched:
    """What one run changes at and below `writable`, but for what lies at and below `excluded`. Paths are the program's;
    `base` is a directory of this process that it sees at `prefix`, copied, where they are not the host's own."""

    def __init__(
        self, writable: Sequence[str], excluded: Sequence[str], keeping: Keeping, *, base: int = -1, prefix: str = "/"
    ) -> None:
        self._base = os.dup(base) if base >= 0 else os.open("/", _DIRECTORY)
        self._prefix = prefix
        self._writable = tuple(writable)
        self._excluded = tuple(excluded)
        self._keeping = keeping
        self._before: dict[str, dict[str, Any] | None] = {}
        # The looks at everything that lie before programs that have not ended.
        self._looks: dict[int, dict[str, _Facts]] = {}
        # Paths that changed without having been asked about.
        self._found: set[str] = set()
        self._began_ns = time.time_ns() - _BEHIND_NS
        self._at_start: dict[str, _Facts] | None = None
        self.complete = True

    def begin(self) -> None:
        """Look at everything before the run, where that is its own and so can be no other's."""
        self._at_start = self.look()

    async def ask(self, request: frames.Request) -> None:
        """Keep what a guard is about to change."""
        if not request.op.startswith("fs.") or request.op in _NO_CHANGE:
            return
        for name in ("path", "to"):
            path = request.args.get(name)
            if isinstance(path, str) and self._is_granted(path) and path not in self._before:
                await asyncio.to_thread(self._keep, path, whole=request.op == "fs.rename")

    async def starts(self, spawn: int) -> None:
        """Another program is about to start."""
        look = await asyncio.to_thread(self.look)
        if look is None:
            self.complete = False
        else:
            self._looks[spawn] = look

    async def ended(self, spawn: Any) -> dict[str, Any] | None:
        """What another program changed: the state of each file, with its content kept; None where that is not known."""
        before = self._looks.pop(spawn, None) if type(spawn) is int else None
        if before is None:
            return None
        return await asyncio.to_thread(self.changed_since, before)

    def changed(self, paths: Iterable[str] | None) -> None:
        """When the run is over: what has changed since it began, whoever did it; None for too much to tell."""
        if paths is None:
            self.complete = False
            return
        for path in paths:
            if path not in self._before and self._is_granted(path):
                self._found.add(path)

    async def finish(self, note: Callable[[str, Any, Any, bool], None]) -> None:
        """Hand over each path that was written to, with what it was and is, which may be the same, and whether a guard
        asked, or another program was started that did it."""
        if self._at_start is not None:
            self._looks[-1] = self._at_start
        for before in self._looks.values():
            # Programs that nobody waited for.
            await asyncio.to_thread(self.changed_since, before)
        for path, before, after in await asyncio.to_thread(self._compared):
            note(path, before, after, path not in self._found)
        self.close()

    def close(self) -> None:
        """Let the files go. May be called twice."""
        base, self._base = self._base, -1
        if base >= 0:
            os.close(base)

    def _is_granted(self, path: str) -> bool:
        return any(is_below(path, top) for top in self._writable) and not any(
            is_below(path, top) for top in self._excluded
        )

    def _keep(self, path: str, *, whole: bool) -> None:
        if len(self._before) >= MAX_TOUCHED:
            self.complete = False
            return
        self._before[path] = state = self._state(path, keep=True)
        if whole and state is not None and state.get("directory"):
            for below, _ in self._walk([path]):
                if below not in self._before and len(self._before) < MAX_TOUCHED:
                    self._before[below] = self._state(below, keep=True)

    def _state(self, path: str, *, keep: bool) -> dict[str, Any] | None:
        """What a path is, None for nothing; with its content kept if it is to be."""
        with contextlib.suppress(OSError), self._opened(os.path.dirname(path)) as above:
            name = os.path.basename(path)
            found = os.stat(name, dir_fd=above, follow_symlinks=False)
            mode = stat.S_IMODE(found.st_mode)
            if stat.S_ISDIR(found.st_mode):
                return {"directory": True, "mode": mode}
            if stat.S_ISLNK(found.st_mode):
                return {"link": os.readlink(name, dir_fd=above)}
            state: dict[str, Any] = {"bytes": found.st_size, "mode": mode, "mtime_ns": str(found.st_mtime_ns)}
            if stat.S_ISREG(found.st_mode) and (not keep or found.st_size <= MAX_KEPT_FILE_BYTES):
                state["sha256"] = self._content(above, name, keep=keep)
            return state
        return None

    def _content(self, above: int, name: str, *, keep: bool) -> str:
        descriptor = os.open(name, _FILE, dir_fd=above)
        try:
            if keep:
                data = b""
                while piece := os.read(descriptor, _CHUNK):
                    data += piece
                    if len(data) > MAX_KEPT_FILE_BYTES:
                        raise OSError("it grows")
                return self._keeping.keep(data)
            digest = digests.sha256(b"")
            while piece := os.read(descriptor, _CHUNK):
                digest.update(piece)
            return digest.hexdigest()
        finally:
            os.close(descriptor)

    def look(self) -> dict[str, _Facts] | None:
        """All granted files as they are; None for too many."""
        found: dict[str, _Facts] = {}
        for path, facts in self._walk(self._writable):
            found[path] = facts
            if len(found) > MAX_LOOKED_AT:
                return None
        return found

    def changed_since(self, before: dict[str, _Facts]) -> dict[str, Any] | None:
        """The state of each path that is not what it was at a look, with its content kept; None for too many."""
        now = self.look()
        if now is None:
            self.complete = False
            return None
        changed = [path for path in {**before, **now} if before.get(path) != now.get(path)]
        files = {}
        for path in sorted(changed):
            if path not in self._before:
                # What it was is gone; a path that was not there is known all the same.
                self._before[path] = {"unknown": True} if path in before else None
            files[path] = self._state(path, keep=True)
        return files

    def _compared(self) -> list[tuple[str, Any, Any]]:
        self._found.difference_update(self._before)
        paths = dict.fromkeys([*self._before, *self._found])
        for path in self._before:
            for beside in _BESIDE_DATABASES:
                if path + beside not in paths and self._state(path + beside, keep=False) is not None:
                    paths[path + beside] = None
        for path, before in self._before.items():
            if before is None:
                # It may have come by a rename, with everything in it.
                for below, _ in self._walk([path]):
                    paths.setdefault(below)
                    self._found.discard(below)
        found = []
        for path in sorted(paths):
            before, after = self._before.get(path), self._state(path, keep=False)
            if path in self._found:
                came = after is not None and self._came(path)
                if after is None or ("directory" in after and not came):
                    continue
                before = None if came else {"unknown": True}
            if _same(before, after) and not (path in self._before and _can_be_put_back(before)):
                continue
            found.append((path, before, after))
        return found

    def _came(self, path: str) -> bool:
        """Whether a path is of a file or directory that was made since the run began."""
        from agentbox.linux.birth import birth_ns

        with contextlib.suppress(OSError), self._opened(os.path.dirname(path)) as above:
            born = birth_ns(above, os.path.basename(path))
            return born is not None and born >= self._began_ns
        return False

    def _walk(self, tops: Sequence[str]) -> Iterator[tuple[str, _Facts]]:
        """Everything at and below, no link followed."""
        waiting = []
        for top in tops:
            if top == self._prefix:
                waiting.append(top)
                continue
            with contextlib.suppress(OSError), self._opened(os.path.dirname(top)) as above:
                found = os.stat(os.path.basename(top), dir_fd=above, follow_symlinks=False)
                yield top, _facts(found)
                if stat.S_ISDIR(found.st_mode):
                    waiting.append(top)
        while waiting:
            path = waiting.pop()
            with contextlib.suppress(OSError), self._opened(path) as directory:
                for name in os.listdir(directory):
                    below = f"{path.rstrip('/')}/{name}"
                    if any(is_below(below, one) for one in self._excluded):
                        continue
                    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    yield below, _facts(found)
                    if stat.S_ISDIR(found.st_mode):
                        waiting.append(below)

    @contextlib.contextmanager
    def _opened(self, directory: str) -> Iterator[int]:
        """A descriptor of a directory of the program's, reached without following a link. Raises OSError."""
        if not is_below(directory, self._prefix):
            raise OSError(f"{directory} is not looked at")
        at = os.dup(self._base)
        try:
            for part in directory[len(self._prefix) :].split("/"):
                if part:
                    below = os.open(part, _DIRECTORY, dir_fd=at)
                    os.close(at)
                    at = below
            yield at
        finally:
            os.close(at)


def _facts(found: os.stat_result) -> _Facts:
    """What changes with the file. The times of a directory say only that names in it changed."""
    if stat.S_ISDIR(found.st_mode):
        return (found.st_dev, found.st_ino, found.st_mode)
    return (found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _can_be_put_back(state: Any) -> bool:
    """Whether a replay can make a path that: not a device, say, which is what it is for everybody."""
    return state is None or not state.keys().isdisjoint(("sha256", "directory", "link"))


def _same(before: Any, after: Any) -> bool:
    """Whether a file is what it was, whatever its times."""
    if before is None or after is None:
        return before is after
    return "unknown" not in before and all(
        before.get(name) == after.get(name) for name in ("sha256", "directory", "link", "mode", "bytes")
    )
