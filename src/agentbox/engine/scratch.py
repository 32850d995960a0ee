# SPDX-License-Identifier: MIT
"""Copies of what a policy lets be written, for a replay to write to: at the same paths for the program, elsewhere on
the host. They are put back to what the files were before the recorded run, as far as that was kept."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from typing import TYPE_CHECKING

from agentbox.errors import InvalidRequestError
from agentbox.light import contextlib, digests
from agentbox.policy.paths import is_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

MAX_SCRATCH_BYTES = 4 << 30
MAX_SCRATCH_FILES = 200_000
_OWN = ".agentbox"
_CLONE_FILE = 0x40049409  # FICLONE of <linux/fs.h>
_CHUNK = 1 << 20


class Scratch:
    """A private directory with a copy of each of `paths`, nested ones inside the one above. `near` is where it is made:
    on the same file system copies may share their blocks. Removed by `close`. Raises InvalidRequestError when there is
    too much to copy."""

    def __init__(self, paths: Sequence[str], near: str) -> None:
        self._directory = _made_near(near)
        self._tops = [path for path in sorted(paths) if not any(is_below(path, p) and p != path for p in paths)]
        self.sources: dict[str, str] = {}
        self._left_bytes, self._left_files = MAX_SCRATCH_BYTES, MAX_SCRATCH_FILES
        self._at_start: dict[str, tuple[int, ...]] = {}
        try:
            for number, path in enumerate(self._tops):
                # The box sees the source's own mode and owner.
                self.sources[path] = f"{self._directory}/{number}"
                self._copy(path, self.sources[path], top=True)
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
                self.sources[path] = self.place(path) or path

    def place(self, path: str) -> str | None:
        """Where the copy of a path of the program's lies, None for one that is not copied."""
        for top in self._tops:
            if is_below(path, top):
                return self.sources[top] + path[len(top) :]
        return None

    def put_back(
        self, written: Mapping[str, tuple[int, Mapping[str, Any]]], read: Callable[[str], bytes | None]
    ) -> list[str]:
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

    def apply(self, files: Mapping[str, Any], read: Callable[[str], bytes | None]) -> None:
        """Write what a program wrote that is not run again."""
        for path, state in sorted(files.items()):
            self._set(path, state, read)

    def begin(self) -> None:
        """From now on what changes is what the replay changes."""
        self._at_start = dict(self._facts())

    def changes(self) -> dict[str, dict[str, Any] | None]:
        """What is different since `begin`: the state of each path, None for one that is gone."""
        now = dict(self._facts())
        found: dict[str, dict[str, Any] | None] = {path: None for path in self._at_start if path not in now}
        for path, facts in now.items():
            if self._at_start.get(path) != facts:
                place = self.place(path)
                found[path] = state_of(place) if place is not None else None
        return found

    def close(self) -> None:
        """Remove all copies."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _facts(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for top in self._tops:
            source = self.sources[top]
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

    def _set(self, path: str, state: Any, read: Callable[[str], bytes | None]) -> bool:
        """Make one path what it is to be; False where its content is not known."""
        place = self.place(path)
        if place is None:
            return True
        data = None
        if isinstance(state, dict) and not state.keys() & {"sha256", "directory", "link"}:
            return False
        if isinstance(state, dict) and "sha256" in state:
            data = read(str(state["sha256"]))
            if data is None:
                return state_of(place) is not None and (state_of(place) or {}).get("sha256") == state["sha256"]
        with contextlib.suppress(OSError):
            _remove(place, keep_directory=isinstance(state, dict) and bool(state.get("directory")))
        if not isinstance(state, dict):
            return True
        with contextlib.suppress(OSError):
            owner = os.stat(os.path.dirname(place))
            mode = state.get("mode")
            if state.get("directory"):
                os.makedirs(place, exist_ok=True)
            elif "link" in state:
                os.symlink(str(state["link"]), place)
                mode = None
            elif data is not None:
                with open(place, "xb") as file:
                    file.write(data)
            if isinstance(mode, int):
                os.chmod(place, mode & 0o777)
            if os.geteuid() == 0:
                os.chown(place, owner.st_uid, owner.st_gid, follow_symlinks=False)
            time = state.get("mtime_ns")
            if isinstance(time, str) and time.isdecimal() and not state.get("directory"):
                os.utime(place, ns=(int(time), int(time)), follow_symlinks=False)
        return True

    def _copy(self, source: str, target: str, *, top: bool = False) -> None:
        self._left_files -= 1
        if self._left_files < 0:
            raise self._too_much(source)
        try:
            found = os.lstat(source)
        except FileNotFoundError:
            if top:
                os.mkdir(target)
            return
        if stat.S_ISDIR(found.st_mode):
            os.mkdir(target)
            for name in os.listdir(source):
                if name != _OWN:
                    self._copy(f"{source}/{name}", f"{target}/{name}")
        elif stat.S_ISREG(found.st_mode):
            self._left_bytes -= found.st_size
            if self._left_bytes < 0:
                raise self._too_much(source)
            _copy_file(source, target)
        elif stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(source), target)
        else:
            # Sockets and pipes lead to others.
            return
        if os.geteuid() == 0:
            os.chown(target, found.st_uid, found.st_gid, follow_symlinks=False)
        if not stat.S_ISLNK(found.st_mode):
            os.chmod(target, stat.S_IMODE(found.st_mode) & 0o1777)
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns), follow_symlinks=False)

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
            return {"mode": mode}
        digest = digests.sha256(b"")
        with open(place, "rb") as file:
            while data := file.read(_CHUNK):
                digest.update(data)
    except OSError:
        return None
    return {"bytes": found.st_size, "sha256": digest.hexdigest(), "mode": mode}


def _copy_file(source: str, target: str) -> None:
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
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


def _remove(place: str, *, keep_directory: bool) -> None:
    found = os.lstat(place)
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(place)
    elif not keep_directory:
        shutil.rmtree(place)


def _made_near(near: str) -> str:
    try:
        return tempfile.mkdtemp(prefix="replay-", dir=near)
    except OSError:
        return tempfile.mkdtemp(prefix="agentbox-replay-")
