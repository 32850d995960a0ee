# SPDX-License-Identifier: MIT
"""The socket between a server and its keeper: a file of the state directory that nobody else may open."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from pathlib import Path

from agentbox.errors import ConfigError

SOCKET = "keeper.sock"
LOCK = "keeper.lock"
LOG = "keeper.log"
OWNER_HEADER = b"x-agentbox-owner"
PRESENCE_PATH = "/presence"
_BACKLOG = 512
_LARGEST_LOG_BYTES = 4 << 20
_CREDENTIALS = struct.Struct("3i")
# The kernel's bound for the path of a UNIX socket, less some room.
_LONGEST_PATH = 100


class KeeperSocket:
    """The socket of one state directory, whatever the length of its path. Holds a descriptor for the process's life."""

    def __init__(self, state: Path) -> None:
        """Raises ConfigError when the directory cannot be used."""
        self.state = state
        try:
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._directory = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(
                f"the state directory {state} cannot be used: {error.strerror}",
                hint="set AGENTBOX_STATE_DIR to a directory that this user may write to",
            ) from error

    @property
    def path(self) -> str:
        """A path that the kernel takes."""
        plain = str(self.state / SOCKET)
        return plain if len(os.fsencode(plain)) <= _LONGEST_PATH else f"/proc/self/fd/{self._directory}/{SOCKET}"

    def lock(self) -> bool:
        """Become the one keeper of this directory, until this process ends; False where another one is. Raises
        OSError."""
        fd = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=self._directory)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        # For people, and for who looks after it.
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        return True

    def is_kept(self) -> bool:
        """Whether a keeper holds the lock. Raises OSError."""
        try:
            fd = os.open(LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._directory)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def listen(self) -> socket.socket:
        """Listen in place of a keeper that is dead. Only for who holds the lock. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET, dir_fd=self._directory)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(self.path)
        except OSError:
            listener.close()
            raise
        finally:
            os.umask(before)
        listener.listen(_BACKLOG)
        return listener

    def unlink(self) -> None:
        """Take the socket away, so that who comes starts another keeper."""
        with contextlib.suppress(OSError):
            os.unlink(SOCKET, dir_fd=self._directory)

    def log(self) -> int:
        """The keeper's log, opened to append; begun anew when it has grown large. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(LOG, flags, 0o600, dir_fd=self._directory)
        if os.fstat(fd).st_size > _LARGEST_LOG_BYTES:
            os.ftruncate(fd, 0)
        return fd


def is_ours(sock: socket.socket) -> bool:
    """Whether who is at the other end runs as this user."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return bool(uid in (os.geteuid(), 0))
