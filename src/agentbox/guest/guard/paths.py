# SPDX-License-Identifier: MIT
"""Which file a path means: links, `.` and `..` followed as the kernel does, remembered by directory.

Following a path costs a call for each of its parts. A directory that the guest cannot change is followed once; any
other is compared, by device and inode, with what the same text led to before, which is one call.
"""

from __future__ import annotations

from posix import getcwd, lstat, readlink, stat

from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_LINKS = 40
_MAX_REMEMBERED = 4096
_KIND, _LINK = 0o170000, 0o120000


@sealed
class Paths:
    """Resolves paths. `fixed(directory)` says whether nobody inside can change where an absolute directory leads."""

    def __init__(self, fixed: Any) -> None:
        self._fixed = fixed
        self._directories: dict[str, Any] = {}

    def resolve(self, path: str, follow: bool = True) -> Any:
        """The resolved path and its lstat, None when nothing is there. Without `follow` a link at the end is kept."""
        at = path.rfind("/")
        name = path[at + 1 :]
        if not name or name == "." or name == "..":
            return self._slowly(path, True)
        directory = path[:at] if at > 0 else ("/" if at == 0 else "")
        known = self._directories.get(directory)
        if known is None or not (known[1] is None or _leads_to(directory, known)):
            known = self._follow_directory(directory)
        base = known[0]
        full = base + "/" + name if base != "/" else "/" + name
        try:
            found = lstat(full)
        except OSError:
            return full, None
        if follow and found.st_mode & _KIND == _LINK:
            return self._slowly(full, True)
        return full, found

    def directory_of(self, descriptor: int) -> str:
        """The path of an open directory."""
        return readlink(f"/proc/self/fd/{descriptor}")

    def _follow_directory(self, directory: str) -> Any:
        full, found = self._slowly(directory or ".", True)
        fixed = found is not None and full == directory and self._fixed(full)
        known = (full, None if fixed else found)
        if found is not None:
            if len(self._directories) >= _MAX_REMEMBERED:
                self._directories.clear()
            self._directories[directory] = known
        return known

    def _slowly(self, path: str, follow: bool) -> Any:
        """Part by part. What does not exist stays as it is written."""
        if path[:1] != "/":
            path = getcwd() + "/" + path
        waiting = path.split("/")
        waiting.reverse()
        done: list[str] = []
        links = 0
        found: Any = None
        while waiting:
            part = waiting.pop()
            if not part or part == ".":
                continue
            if part == "..":
                if done:
                    done.pop()
                found = None
                continue
            here = "/" + "/".join([*done, part])
            try:
                found = lstat(here)
            except OSError:
                found = None
                done.append(part)
                continue
            if found.st_mode & _KIND != _LINK or not (follow or waiting):
                done.append(part)
                continue
            links += 1
            target = readlink(here)
            if links > _MAX_LINKS:
                raise OSError(40, "Too many levels of symbolic links")
            if here.startswith("/proc/") and target[:1] != "/":
                if ":" in target:
                    # A pipe, socket or other nameless thing that is open already.
                    done.append(part)
                    continue
            elif target[:1] == "/":
                done = []
            more = target.split("/")
            more.reverse()
            waiting += more
        full = "/" + "/".join(done)
        if found is None:
            try:
                found = lstat(full)
            except OSError:
                found = None
        return full, found


def _leads_to(directory: str, known: Any) -> bool:
    try:
        now = stat(directory or ".")
    except OSError:
        return False
    return bool(now.st_ino == known[1].st_ino and now.st_dev == known[1].st_dev)
