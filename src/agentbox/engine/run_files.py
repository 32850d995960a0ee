# SPDX-License-Identifier: MIT
"""Where a run's trace lies: `.agentbox/runs/ID/trace.jsonl`, with `trace.jsonl` as a link to the last one."""

from __future__ import annotations

import fcntl
import os
import time

from agentbox.errors import TraceError
from agentbox.light import contextlib
from agentbox.trace.files import create

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

LINK = "trace.jsonl"
DIRECTORY = ".agentbox"
_JOIN_ATTEMPTS = 20
_JOIN_PAUSE_SECONDS = 0.02
_A_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class RunFiles:
    """The files of one run. An explicit trace path must not exist yet; else each run has a directory of its own."""

    def __init__(self, directory: str, explicit: str | None) -> None:
        self._directory = directory
        self._explicit = explicit is not None
        self._linked = False
        self._shared = -1
        self._made: list[int] = []
        self._descriptor = -1
        self.name = name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
        self.trace = explicit if explicit is not None else f"{directory}/{DIRECTORY}/runs/{name}/{LINK}"

    def open(self) -> None:
        """Make the directory. Raises TraceError."""
        if self._explicit:
            parent = os.path.dirname(self.trace) or "."
            if not os.path.isdir(parent):
                raise TraceError(f"{self.trace} cannot be made: there is no directory {parent}", hint="make it first")
            if os.path.lexists(self.trace):
                raise TraceError(
                    f"{self.trace} exists already",
                    hint="name another file, or leave -t out: then each run gets a file of its own",
                )
            return
        try:
            self._make_directories()
        except OSError as error:
            raise TraceError(
                f"{os.path.dirname(self.trace)} cannot be made: {error.strerror}",
                hint="run in a directory that you may write to, or name a trace file with -t",
            ) from error

    def create(self) -> None:
        """Create the trace, so that a box can show it as what may not be written. Raises TraceError."""
        self._descriptor = create(self.trace)
        # Before a box shows the directory: it shows each mount as that belongs to whom it belonged then.
        self._give_to_owner()

    def take(self) -> int:
        """The trace's descriptor, the caller's to close from now on."""
        found, self._descriptor = self._descriptor, -1
        return found

    def forget(self) -> None:
        """Remove a trace that nobody took."""
        if self._descriptor >= 0:
            os.close(self.take())
            with contextlib.suppress(OSError):
                os.unlink(self.trace)

    def _make_directories(self) -> None:
        """Descriptors of those that are new are kept for `_give_to_owner`: a path could lead elsewhere by then."""
        names = os.path.relpath(os.path.dirname(self.trace), self._directory).split("/")
        above = os.open(self._directory, _A_DIRECTORY)
        try:
            for name in names:
                last = name == names[-1]
                try:
                    os.mkdir(name, 0o700 if last else 0o777, dir_fd=above)
                except FileExistsError:
                    if last:
                        raise
                    below = os.open(name, _A_DIRECTORY, dir_fd=above)
                else:
                    below = os.open(name, _A_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
                    if not os.listdir(below):
                        self._made.append(os.dup(below))
                os.close(above)
                above = below
        finally:
            os.close(above)

    def _give_to_owner(self) -> None:
        """What root made belongs to the project's owner, who else could not run here, nor read the trace; nor could
        the command, which has the owner's rights. The file goes first: until then only root can put another there."""
        owner = os.stat(self._directory)
        made, self._made = self._made, []
        try:
            if os.geteuid() == 0 and owner.st_uid != 0 and made:
                trace = os.open(LINK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=made[-1])
                for fd in (trace, *reversed(made)):
                    if os.fstat(fd).st_uid == 0:
                        os.fchown(fd, owner.st_uid, owner.st_gid)
                os.close(trace)
        except OSError:
            # A file system without owners; root can read everything there.
            pass
        finally:
            for fd in made:
                os.close(fd)

    def join(self) -> None:
        """Be counted among the runs of this directory; see `alone`. Nothing where none had a directory of its own."""
        with contextlib.suppress(OSError):
            self._shared = os.open(f"{self._directory}/{DIRECTORY}/runs", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for _ in range(_JOIN_ATTEMPTS):
                # Another run may just be tidying up; a command that locks what it can read must not hold this one up.
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(self._shared, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return
                time.sleep(_JOIN_PAUSE_SECONDS)

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether no other run goes on in this directory; none begins in this context then. The run leaves by it."""
        found = self._shared < 0
        try:
            if self._shared >= 0:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(self._shared, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    found = True
            yield found
        finally:
            if self._shared >= 0:
                os.close(self._shared)
                self._shared = -1

    def link(self) -> None:
        """Point `trace.jsonl` at this run's trace. A file of that name that is no link is kept as it is."""
        if self._explicit:
            return
        link = f"{self._directory}/{LINK}"
        if os.path.lexists(link) and not os.path.islink(link):
            return
        self._linked = self._point(link)

    def close(self) -> list[str]:
        """Undo what the command may have done to the way to its trace. Nothing is removed: traces are kept. Returns
        what the user should know."""
        link = f"{self._directory}/{LINK}"
        if self._explicit or not self._linked or self._leads_here(link):
            return []
        if not self._point(link):
            return [f"{link} does not lead to this run's trace any more; it is {self.trace}"]
        return [f"{link} was changed while the command ran; it leads to the trace of this run again"]

    def _leads_here(self, link: str) -> bool:
        try:
            return os.path.islink(link) and os.path.samefile(link, self.trace)
        except OSError:
            return False

    def _point(self, link: str) -> bool:
        temporary = f"{os.path.dirname(self.trace)}/link"
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            os.symlink(os.path.relpath(self.trace, self._directory), temporary)
            os.replace(temporary, link)
        except OSError:
            return False
        return True
