# SPDX-License-Identifier: MIT
"""What a one-shot box has on the host: one bounded file system with everything that it may write, the filter of its
programs, and the place where its init reports how the program ended."""

from __future__ import annotations

import contextlib
import os
import socket

from agentbox.errors import ConfinementError
from agentbox.isolation.backends.docker.showing import Showing
from agentbox.isolation.plan import disk_of
from agentbox.linux import mounts, namespaces, seccomp
from agentbox.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbox.isolation.plan import WorkspaceView
    from agentbox.models import Limits

# How these file systems are told from others.
SOURCE = "agentbox"
INSIDE = "/.agentbox"
INIT = f"{INSIDE}/init"
FILTER = f"{INSIDE}/filter"
STATUS = f"{INSIDE}/status"
TERMINAL = f"{INSIDE}/terminal"
_NATIVE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "native")
NATIVE_INIT = os.path.join(_NATIVE, "agentbox-box-init")
_REPORT_BYTES = 256
_BACKLOG = 128
# The filter and the report, beside what disk_of leaves for a root.
_PLACES = (("work", 0o755), ("tmp", 0o1777), ("shm", 0o1777))


@dataclass(frozen=True, slots=True)
class Loaded:
    """A library that every program of a box loads before anything of its own: its file here, its path there."""

    file: str
    path: str


# Without it `ls` and `stat` of newer coreutils fail on every path in gVisor.
STAT = Loaded(os.path.join(_NATIVE, "gvisor-stat.so"), f"{INSIDE}/stat.so")
# Keeps a program from starting others.
ALONE = Loaded(os.path.join(_NATIVE, "alone.so"), f"{INSIDE}/alone.so")


def loading(loaded: Sequence[Loaded]) -> bytes:
    """The loader's list of them."""
    return "".join(f"{library.path}\n" for library in loaded).encode()


def binds_of(loaded: Sequence[Loaded], directory: str) -> tuple[tuple[str, str, bool], ...]:
    """(source, target, writable) of them and of the list, which is the file `preload` of the directory."""
    libraries = tuple((library.file, library.path, False) for library in loaded)
    return (*libraries, (f"{directory}/preload", "/etc/ld.so.preload", False)) if loaded else ()


def can_bound() -> bool:
    """Whether this process may mount a file system of a fixed size."""
    return os.geteuid() == 0


def listen_in(directory: int, name: str, path: str) -> socket.socket:
    """A listener, its socket a file in that directory, that a container will show at a path. Raises
    ConfinementError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # By a short name: the kernel allows 107 bytes.
        sock.bind(f"/proc/self/fd/{directory}/{name}")
        os.chmod(name, 0o666, dir_fd=directory)  # noqa: S103 - the directory is nobody else's
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise ConfinementError(
            f"no socket could be made for {path}: {error.strerror}", step="unix socket", errno=error.errno or 0
        ) from error
    return sock


class Ground:
    """Made in an empty directory of the host. As root it is a tmpfs of `disk_mb`, without setuid and devices, put there
    where the process `daemon` sees it; for others a plain directory, which nothing bounds."""

    def __init__(
        self,
        directory: str,
        limits: Limits,
        uid: int,
        gid: int,
        *,
        daemon: int | None,
        loaded: Sequence[Loaded] = (),
    ) -> None:
        self._directory = directory
        self._daemon = daemon
        self._loaded = tuple(loaded)
        self._also: list[tuple[str, str, bool]] = []
        self._mounted = False
        self._fd = -1
        try:
            if can_bound() and daemon is not None:
                size, inodes = disk_of(limits)
                attributes = mounts.ATTR_NOSUID | mounts.ATTR_NODEV
                self._fd = mounts.new_filesystem(
                    "tmpfs", attributes, source=SOURCE, size=str(size), nr_inodes=str(inodes), mode="0711"
                )
                namespaces.with_mounts_of(daemon, lambda: mounts.attach(self._fd, directory))
                self._mounted = True
            else:
                self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for name, mode in _PLACES:
                self._make(name, mode, uid, gid)
            self._write("filter", seccomp.build(), 0o444)
            self._write("preload", loading(loaded), 0o444)
            self._write("status", b"", 0o600, uid, gid)
        except OSError as error:
            self.clear()
            raise ConfinementError(
                f"the box's files could not be made in {directory}: {error.strerror or error}",
                hint="the state directory must be on a file system that the docker daemon sees, with room in it",
                step="box files",
                errno=error.errno or 0,
            ) from error

    def binds(self, view: WorkspaceView | None = None) -> tuple[tuple[str, str, bool], ...]:
        """(source, target, writable) of everything that the container shows of the host; of the workspace only what
        `view` says, if there is one. Raises ConfinementError."""
        here = self._directory
        try:
            workspace = Showing(self._fd, here).binds(view) if view is not None else ((f"{here}/work", "/work", True),)
            for path, text in view.files if view is not None else ():
                self.show_text(path, text)
        except OSError as error:
            raise ConfinementError(
                f"what the policy leaves of the workspace cannot be shown: {error.strerror}",
                hint="raise limits.disk_mb, or let rules name directories",
                step="show workspace",
                errno=error.errno or 0,
            ) from error
        return (
            *workspace,
            (f"{here}/tmp", "/tmp", True),  # noqa: S108 - the box's own
            (f"{here}/shm", "/dev/shm", True),  # noqa: S108 - the box's own
            (f"{here}/filter", FILTER, False),
            (f"{here}/status", STATUS, True),
            (NATIVE_INIT, INIT, False),
            *binds_of(self._loaded, here),
            *self._also,
        )

    def show_text(self, path: str, text: str) -> None:
        """Let the container show a file with that text, read-only. Raises OSError."""
        name = f"text-{len(self._also)}"
        self._write(name, text.encode("utf-8", "surrogateescape"), 0o444)
        self._also.append((f"{self._directory}/{name}", path, False))

    def own_directory(self, name: str, uid: int) -> str:
        """A directory of the box's user; its path. Raises OSError."""
        self._make(name, 0o700, uid, uid if os.geteuid() == 0 else -1)
        return f"{self._directory}/{name}"

    def stand_in(self, name: str, *, directory: bool) -> None:
        """Something for a mount to be put upon. Raises OSError."""
        if directory:
            os.mkdir(name, 0o755, dir_fd=self._fd)
        else:
            self._write(name, b"", 0o444)

    def nothing(self, *, directory: bool) -> str:
        """The path of an empty directory or file that nobody may open. Raises OSError."""
        name = "no-directory" if directory else "no-file"
        with contextlib.suppress(FileExistsError):
            if directory:
                os.mkdir(name, 0, dir_fd=self._fd)
            else:
                self._write(name, b"", 0)
        return f"{self._directory}/{name}"

    def show(self, source: str, path: str) -> None:
        """Let the container show a directory of the host, read-only."""
        self._also.append((source, path, False))

    def listen(self, path: str) -> socket.socket:
        """A listener that the container shows at a path. Raises ConfinementError."""
        name = f"socket-{len(self._also)}"
        sock = listen_in(self._fd, name, path)
        self._also.append((f"{self._directory}/{name}", path, True))
        return sock

    def open_workspace(self) -> int:
        """A descriptor of the workspace, the caller's to close."""
        return os.open("work", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)

    def report(self) -> tuple[int, int, int, int] | None:
        """What the init wrote when the program had ended: wait status, processor time in ms, highest memory in KiB,
        processes that the kernel killed at the memory limit."""
        with contextlib.suppress(OSError, ValueError):
            fd = os.open("status", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=self._fd)
            try:
                status, cpu_ms, max_rss_kib, oom_kills = map(int, os.read(fd, _REPORT_BYTES).split())
            finally:
                os.close(fd)
            return status, cpu_ms, max_rss_kib, oom_kills
        return None

    def clear(self) -> None:
        """Give up the file system; a plain directory's content is the caller's to remove. Does not raise."""
        if self._mounted and self._daemon is not None:
            self._mounted = False
            with contextlib.suppress(OSError):
                namespaces.with_mounts_of(self._daemon, lambda: mounts.detach(self._directory))
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _make(self, name: str, mode: int, uid: int, gid: int) -> None:
        os.mkdir(name, dir_fd=self._fd)
        os.chown(name, uid, gid, dir_fd=self._fd)
        os.chmod(name, mode, dir_fd=self._fd)

    def _write(self, name: str, content: bytes, mode: int, uid: int = -1, gid: int = -1) -> None:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=self._fd)
        try:
            os.write(fd, content)
            os.fchown(fd, uid, gid)
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
