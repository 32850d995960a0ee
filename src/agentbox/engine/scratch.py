# SPDX-License-Identifier: MIT
"""Copies of what a policy lets be written, for a replay to write to: at the same paths for the program, elsewhere on
the host. They are put back to what the files were before the recorded run, as far as that was kept.

Links in a copy lead where they led, or where the program makes them lead: no path in it is followed through one.
"""

from __future__ import annotations

import fcntl
import os
import stat

from agentbox.errors import AgentboxError, InvalidRequestError
from agentbox.light import contextlib, digests
from agentbox.policy.paths import is_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    Read = Callable[[str], bytes | None]

MAX_SCRATCH_BYTES = 4 << 30
MAX_SCRATCH_FILES = 200_000
_OWN = ".agentbox"
_CLONE_FILE = 0x40049409  # FICLONE of <linux/fs.h>
_CHUNK = 1 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Scratch:
    """A private directory with a copy of each of `paths`, nested ones inside the one above. `near` is where it is made:
    on the same file system copies may share their blocks. Removed by `close`. Raises InvalidRequestError when there is
    too much to copy."""

    def __init__(self, paths: Sequence[str], near: str) -> None:
        self._tops = [path for path in sorted(paths) if not any(is_below(path, p) and p != path for p in paths)]
        self._directory = _made_near(near) if self._tops else ""
        self._base = os.open(self._directory, _DIRECTORY) if self._tops else -1
        self.sources: dict[str, str] = {}
        self._left_bytes, self._left_files = MAX_SCRATCH_BYTES, MAX_SCRATCH_FILES
        self._at_start: dict[str, tuple[int, ...]] = {}
        try:
            for number, path in enumerate(self._tops):
                self.sources[path] = f"{self._directory}/{number}"
                self._copy(path, self.sources[path])
        except OSError as error:
            self.close()
            raise InvalidRequestError(
                f"{error.filename or self._directory} cannot be copied for the replay: {error.strerror}",
                hint="a replay writes to copies only, and needs room for them",
            ) from error
        except InvalidRequestError:
            self.close()
            raise
        for path in paths:
            if path not in self.sources:
                self.sources[path] = f"{self._directory}/{self._inside(path)}"

    def put_back(self, written: Mapping[str, tuple[int, Mapping[str, Any]]], read: Read) -> list[str]:
        """Undo in the copies what the recorded run did; paths whose former content was not kept."""
        unknown = []
        # Directories come before what is in them when they are made, and after it when they are removed.
        for path, (_, args) in sorted(written.items()):
            if args.get("before") is not None and not self._set(path, args["before"], read):
                unknown.append(path)
        for path, (_, args) in sorted(written.items(), reverse=True):
            if args.get("before") is None:
                self._set(path, None, read)
        return unknown

    def apply(self, files: Mapping[str, Any], read: Read) -> None:
        """Write what a program wrote that is not run again."""
        for path, state in sorted(files.items()):
            self._set(path, state, read)

    def begin(self) -> None:
        """From now on what changes is what the replay changes."""
        self._at_start = dict(self._facts())

    def changes(self) -> dict[str, dict[str, Any] | None]:
        """What is different since `begin`, when nothing runs any more: the state of each path, None for one that is
        gone."""
        now = dict(self._facts())
        found: dict[str, dict[str, Any] | None] = {path: None for path in self._at_start if path not in now}
        for path, facts in now.items():
            if self._at_start.get(path) != facts:
                found[path] = state_of(f"{self._directory}/{self._inside(path)}")
        return found

    def close(self) -> None:
        """Remove all copies. May be called twice."""
        base, self._base = self._base, -1
        if base < 0:
            return
        os.close(base)
        from agentbox.workspace.removal import remove_tree

        with contextlib.suppress(AgentboxError, OSError):
            above = os.open(os.path.dirname(self._directory), _DIRECTORY)
            try:
                remove_tree(above, os.path.basename(self._directory))
            finally:
                os.close(above)

    def _inside(self, path: str) -> str:
        """The place of a path in the private directory, '' for one that is not copied."""
        for number, top in enumerate(self._tops):
            if is_below(path, top):
                return f"{number}{path[len(top) :]}"
        return ""

    @contextlib.contextmanager
    def _above(self, inside: str) -> Iterator[tuple[int, str]]:
        """The directory of a place, reached without following a link, and its name there. Raises OSError."""
        *parts, name = inside.split("/")
        at = os.dup(self._base)
        try:
            for part in parts:
                below = os.open(part, _DIRECTORY, dir_fd=at)
                os.close(at)
                at = below
            yield at, name
        finally:
            os.close(at)

    def _facts(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for number, top in enumerate(self._tops):
            source = f"{self._directory}/{number}"
            waiting = [source]
            while waiting:
                place = waiting.pop()
                try:
                    found = os.lstat(place)
                except OSError:
                    continue
                path = top + place[len(source) :]
                if stat.S_ISDIR(found.st_mode):
                    # The times of a directory say only that names in it changed.
                    yield path, (found.st_mode, found.st_ino)
                    with contextlib.suppress(OSError):
                        waiting += [f"{place}/{name}" for name in os.listdir(place)]
                else:
                    yield path, (found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    def _set(self, path: str, state: Any, read: Read) -> bool:
        """Make one path what it is to be; False where that is not known, or cannot be done."""
        inside = self._inside(path)
        if not inside:
            return True
        wanted = state if isinstance(state, dict) else None
        data = None
        if wanted is not None and not wanted.keys() & {"sha256", "directory", "link"}:
            return False
        try:
            with self._above(inside) as (above, name):
                if wanted is not None and "sha256" in wanted:
                    data = read(str(wanted["sha256"]))
                    if data is None:
                        return bool(_sha256_of(above, name) == wanted["sha256"])
                _clear(above, name, keep_directory=wanted is not None and bool(wanted.get("directory")))
                if wanted is not None:
                    _make(above, name, wanted, data)
        except (AgentboxError, OSError):
            return wanted is None
        return True

    def _copy(self, top: str, target: str) -> None:
        """Copy a file, or a directory with all below it."""
        if not os.path.lexists(top):
            os.mkdir(target)
            return
        directories = []
        waiting = [(top, target)]
        while waiting:
            source, place = waiting.pop()
            self._left_files -= 1
            found = os.lstat(source)
            self._left_bytes -= found.st_size if stat.S_ISREG(found.st_mode) else 0
            if self._left_files < 0 or self._left_bytes < 0:
                raise self._too_much(source)
            if stat.S_ISDIR(found.st_mode):
                os.mkdir(place)
                directories.append((place, found))
                waiting += [(f"{source}/{name}", f"{place}/{name}") for name in os.listdir(source) if name != _OWN]
                continue
            if stat.S_ISREG(found.st_mode):
                _copy_file(source, place)
            elif stat.S_ISLNK(found.st_mode):
                os.symlink(os.readlink(source), place)
            else:
                # Sockets and pipes lead to others.
                continue
            _dress(place, found)
        for place, found in reversed(directories):
            _dress(place, found)

    def _too_much(self, at: str) -> InvalidRequestError:
        return InvalidRequestError(
            f"what the policy lets be written is too much to copy for a replay (at {at})",
            hint=f"a replay copies up to {MAX_SCRATCH_BYTES >> 30} GiB and {MAX_SCRATCH_FILES} files: grant less",
        )


def state_of(place: str) -> dict[str, Any] | None:
    """What a path of this host is: content by its hash, None where nothing is."""
    try:
        found = os.lstat(place)
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISDIR(found.st_mode):
            return {"directory": True, "mode": mode}
        if stat.S_ISLNK(found.st_mode):
            return {"link": os.readlink(place)}
        if not stat.S_ISREG(found.st_mode):
            return {"bytes": found.st_size, "mode": mode}
        digest = digests.sha256(b"")
        with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            while data := file.read(_CHUNK):
                digest.update(data)
    except OSError:
        return None
    return {"bytes": found.st_size, "sha256": digest.hexdigest(), "mode": mode}


def _sha256_of(above: int, name: str) -> str:
    digest = digests.sha256(b"")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=above), "rb") as file:
        while data := file.read(_CHUNK):
            digest.update(data)
    return digest.hexdigest()


def _clear(above: int, name: str, *, keep_directory: bool) -> None:
    """Remove what is there. Raises OSError, WorkspaceError."""
    try:
        found = os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=above)
    elif not keep_directory:
        from agentbox.workspace.removal import remove_tree

        remove_tree(above, name)


def _make(above: int, name: str, state: Mapping[str, Any], data: bytes | None) -> None:
    """Make a directory, link or file, for the owner of the directory that it is in. Raises OSError."""
    owner = os.fstat(above)
    root = os.geteuid() == 0
    if "link" in state:
        os.symlink(str(state["link"]), name, dir_fd=above)
        if root:
            os.chown(name, owner.st_uid, owner.st_gid, dir_fd=above, follow_symlinks=False)
        return
    if state.get("directory"):
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=above)
        made = os.open(name, _DIRECTORY, dir_fd=above)
    else:
        made = os.open(name, _NEW, 0o600, dir_fd=above)
    try:
        view = memoryview(data or b"")
        while view and data is not None:
            view = view[os.write(made, view) :]
        if root:
            os.fchown(made, owner.st_uid, owner.st_gid)
        mode, time = state.get("mode"), state.get("mtime_ns")
        if isinstance(mode, int):
            os.fchmod(made, mode & 0o1777)
        if isinstance(time, str) and time.isdecimal():
            os.utime(made, ns=(int(time), int(time)))
    finally:
        os.close(made)


def _dress(place: str, like: os.stat_result) -> None:
    """Give a copy owner, mode and times of what it is of."""
    if os.geteuid() == 0:
        os.chown(place, like.st_uid, like.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(like.st_mode):
        os.chmod(place, stat.S_IMODE(like.st_mode) & 0o1777)
    os.utime(place, ns=(like.st_atime_ns, like.st_mtime_ns), follow_symlinks=False)


def _copy_file(source: str, target: str) -> None:
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        writer = os.open(target, _NEW, 0o600)
        try:
            try:
                fcntl.ioctl(writer, _CLONE_FILE, reader)
            except OSError:
                while os.sendfile(writer, reader, None, 1 << 30):
                    pass
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _made_near(near: str) -> str:
    """A new private directory. Raises OSError."""
    name = f"replay-{os.urandom(8).hex()}"
    for directory in (near, "/var/tmp"):  # noqa: S108 - a name that nobody can guess
        with contextlib.suppress(OSError):
            os.mkdir(f"{directory}/{name}", 0o700)
            return f"{directory}/{name}"
    raise InvalidRequestError(
        f"no copies can be made in {near} or in the directory for temporary files", hint="free disk space"
    )
