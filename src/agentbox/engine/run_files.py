# SPDX-License-Identifier: MIT
"""Where a run's trace lies: `.agentbox/runs/ID/trace.jsonl`, with `trace.jsonl` as a link to the last one."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from agentbox.errors import TraceError
from agentbox.light import contextlib

LINK = "trace.jsonl"
DIRECTORY = ".agentbox"
_JOIN_ATTEMPTS = 20
_JOIN_PAUSE_SECONDS = 0.02
_A_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class RunFiles:
    """The files of one run. An explicit trace path must not exist yet; else each run has a directory of its own."""

    def __init__(self, directory: Path, explicit: Path | None) -> None:
        self._directory = directory
        self._explicit = explicit is not None
        self._linked = False
        self._shared = -1
        self._made: list[int] = []
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        self.trace = explicit if explicit is not None else directory / DIRECTORY / "runs" / name / LINK

    def open(self) -> None:
        """Make the directory. Raises TraceError."""
        if self._explicit:
            if not self.trace.parent.is_dir():
                raise TraceError(
                    f"{self.trace} cannot be made: there is no directory {self.trace.parent}", hint="make it first"
                )
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
                f"{self.trace.parent} cannot be made: {error.strerror}",
                hint="run in a directory that you may write to, or name a trace file with -t",
            ) from error

    def _make_directories(self) -> None:
        """Descriptors of those that are new are kept for `_give_to_owner`: a path could lead elsewhere by then."""
        names = self.trace.parent.relative_to(self._directory).parts
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
            self._shared = os.open(self._directory / DIRECTORY / "runs", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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
        self._give_to_owner()
        link = self._directory / LINK
        if os.path.lexists(link) and not link.is_symlink():
            return
        self._linked = self._point(link)

    def close(self) -> list[str]:
        """Undo what the command may have done to the way to its trace. Nothing is removed: traces are kept. Returns
        what the user should know."""
        link = self._directory / LINK
        if self._explicit or not self._linked or self._leads_here(link):
            return []
        if not self._point(link):
            return [f"{link} does not lead to this run's trace any more; it is {self.trace}"]
        return [f"{link} was changed while the command ran; it leads to the trace of this run again"]

    def _leads_here(self, link: Path) -> bool:
        try:
            return link.is_symlink() and link.samefile(self.trace)
        except OSError:
            return False

    def _point(self, link: Path) -> bool:
        temporary = self.trace.parent / "link"
        try:
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(os.path.relpath(self.trace, self._directory))
            temporary.replace(link)
        except OSError:
            return False
        return True
