# SPDX-License-Identifier: MIT
"""The ledger beside the key: how long each trace of this user was, so that a shorter one is told from a crash.

One JSON line for the start of a run, at most one a second while it grows, and one for its seal. Appended only, by any
number of processes at once; only traces that are removed on purpose take their lines along.
"""

from __future__ import annotations

import fcntl
import os
import stat

from agentbox.errors import TraceError
from agentbox.light import contextlib
from agentbox.records import asdict, dataclass
from agentbox.trace.canonical import NotCanonicalError, dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

_MAX_LINE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Standing:
    """The last that the ledger knows of a run: its trace had `count` records, the last with the hash `head`."""

    run: str
    count: int
    head: str
    sealed: bool


class Ledger:
    """An append-only file. Raises TraceError when it cannot be used."""

    def __init__(self, path: str | Path, *, force: Callable[[int], None] | None = None) -> None:
        """`force` gets a descriptor of the file, which is then its own, when a line should be on disk (syncing.py).

        Without it nobody waits for the disk either: a crash of the machine takes the last lines, and traces that are
        longer than the ledger knows verify as well. It must only not know more than a trace that was forced first."""
        self._path = os.fspath(path)
        self._force = force

    @property
    def path(self) -> Path:
        """The file."""
        from pathlib import Path

        return Path(self._path)

    def note(self, standing: Standing, *, durable: bool = False) -> None:
        """Append a line; `durable` gives the file to be forced to disk."""
        line = (dumps(asdict(standing)) + "\n").encode()
        try:
            with self._locked() as descriptor:
                # What a killed process left without its line end must not swallow this line.
                if _ends_torn(descriptor):
                    line = b"\n" + line
                _write_all(descriptor, line)
                if durable and self._force is not None:
                    # The lock is the open file's: nobody shall wait for the disk because of the copy.
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                    self._force(os.dup(descriptor))
        except OSError as error:
            raise TraceError(
                f"{self._path}: cannot be written: {error.strerror}",
                hint="the ledger proves how long a trace was; free disk space, or set AGENTBOX_STATE_DIR",
            ) from error

    def find(self, run: str) -> Standing | None:
        """The farthest that this run's trace is known to have come; None for a run that the ledger does not know."""
        found: Standing | None = None
        wanted = dumps(run).encode()
        try:
            with open(self._path, "rb") as file:
                while line := file.readline(_MAX_LINE_BYTES):
                    if wanted in line and (standing := _parse(line)) and standing.run == run:
                        found = _farther(found, standing)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise TraceError(f"{self._path}: cannot be read: {error.strerror}", hint="check its owner") from error
        return found

    def forget(self, runs: Collection[str]) -> None:
        """Remove what is known of runs whose traces were removed on purpose. All of it is done, or nothing."""
        directory, name = os.path.split(self._path)
        draft = os.path.join(directory, f".{name}.{os.urandom(8).hex()}")
        try:
            with self._locked() as descriptor:
                try:
                    with open(draft, "xb", opener=_private) as kept, os.fdopen(os.dup(descriptor), "rb") as file:
                        file.seek(0)
                        for line in file:
                            standing = _parse(line)
                            if standing is not None and standing.run not in runs:
                                kept.write(line)
                        kept.flush()
                        os.fdatasync(kept.fileno())
                    os.replace(draft, self._path)
                finally:
                    _remove(draft)
        except OSError as error:
            raise TraceError(f"{self._path}: cannot be shortened: {error.strerror}", hint="free disk space") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            descriptor = os.open(self._path, flags, 0o600)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise TraceError(f"{self._path}: is no regular file", hint="remove it")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                # Another process may have put a shorter one in its place while this one waited.
                if _is_at(descriptor, self._path):
                    yield descriptor
                    return
            finally:
                os.close(descriptor)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _farther(one: Standing | None, other: Standing) -> Standing:
    return other if one is None or (other.sealed, other.count) >= (one.sealed, one.count) else one


def _parse(line: bytes) -> Standing | None:
    try:
        fields = loads(line)
        return Standing(str(fields["run"]), int(fields["count"]), str(fields["head"]), fields["sealed"] is True)
    except (NotCanonicalError, KeyError, TypeError, ValueError):
        return None


def _ends_torn(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
