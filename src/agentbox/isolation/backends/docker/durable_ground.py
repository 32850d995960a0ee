# SPDX-License-Identifier: MIT
"""What a durable container has on the host beside its workspace: a directory with the filter of its programs, its list
of users, and the workspace's mount."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile

from agentbox.errors import ConfinementError
from agentbox.isolation.backends.docker.ground import FILTER, INIT, NATIVE_INIT, STAT, binds_of, listen_in, loading
from agentbox.isolation.durable import HOME, WORKSPACE, agent_files
from agentbox.linux import mounts, namespaces, seccomp

PREFIX = "agentbox-container-"


class DurableGround:
    """Made for a user of the container, who can write the workspace; as root by a mount on which its owner
    and that user change places, so that what the user makes is the owner's on the disk."""

    def __init__(self, workspace: str, uid: int, *, daemon: int | None, gvisor: bool) -> None:
        base = "/run" if os.geteuid() == 0 and os.path.isdir("/run") else None
        self.directory = tempfile.mkdtemp(prefix=PREFIX, dir=base)
        self._shown = workspace
        self._sockets: list[tuple[str, str, bool]] = []
        self._loaded = (STAT,) if gvisor else ()
        self._daemon = daemon
        try:
            self.write("filter", seccomp.build())
            self.write("preload", loading(self._loaded))
            self.write("passwd", b"")
            self.write("group", b"")
            if os.geteuid() == 0 and daemon is not None:
                self._mount(workspace, uid, daemon)
        except OSError as error:
            self.clear()
            raise ConfinementError(
                f"the workspace {workspace} cannot be shown to a container: {error.strerror or error}",
                hint="the file system must know id-mapped mounts (ext4, xfs, btrfs, tmpfs), or chown the workspace to "
                "an ordinary user",
                step="workspace",
                errno=error.errno or 0,
            ) from error
        except BaseException:
            self.clear()
            raise

    def binds(self) -> tuple[tuple[str, str, bool], ...]:
        """(source, target, writable) of everything that the container shows of the host."""
        here = self.directory
        return (
            (self._shown, WORKSPACE, True),
            (self._shown, HOME, True),
            (f"{here}/filter", FILTER, False),
            (NATIVE_INIT, INIT, False),
            *binds_of(self._loaded, here),
            *((source, target, False) for source, target in agent_files()),
            *self._sockets,
        )

    def listen(self, path: str) -> socket.socket:
        """A listener that the container shows at a path. Raises ConfinementError."""
        name = f"socket-{len(self._sockets)}"
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sock = listen_in(directory, name, path)
        finally:
            os.close(directory)
        self._sockets.append((f"{self.directory}/{name}", path, True))
        return sock

    def users(self) -> tuple[tuple[str, str, bool], ...]:
        """As `binds`: a list of users in place of the image's."""
        return (
            (f"{self.directory}/passwd", "/etc/passwd", False),
            (f"{self.directory}/group", "/etc/group", False),
        )

    def write(self, name: str, content: bytes) -> None:
        """Make one of its files anew. Raises OSError."""
        fd = os.open(f"{self.directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, content)
            os.fchmod(fd, 0o644)
        finally:
            os.close(fd)

    def clear(self) -> None:
        """Remove what was made here, not the workspace. Does not raise."""
        clear(self.directory, self._daemon)

    def _mount(self, workspace: str, uid: int, daemon: int) -> None:
        point = f"{self.directory}/work"
        os.mkdir(point, 0o700)
        tree = mapped(workspace, uid)
        try:
            namespaces.with_mounts_of(daemon, lambda: mounts.attach(tree, point))
        finally:
            os.close(tree)
        self._shown = point


def mapped(path: str, uid: int) -> int:
    """A detached mount of a file or directory, as a descriptor, on which its owner and that user change places. Raises
    OSError."""
    owner = os.stat(path).st_uid
    tree = mounts.clone_tree(path)
    try:
        mounts.set_attributes(tree, mounts.ATTR_NOSUID | mounts.ATTR_NODEV)
        if owner != uid:
            # gVisor makes files as root, then gives them away.
            same = (0,) if 0 not in (owner, uid) else ()
            maps = namespaces.swapping_namespace(owner, uid, *same)
            try:
                mounts.map_ids(tree, maps)
            finally:
                os.close(maps)
    except BaseException:
        os.close(tree)
        raise
    return tree


def clear(directory: str, daemon: int | None) -> None:
    """Remove what a ground made, not the workspace. Does not raise; a directory of another name is not touched."""
    if not os.path.basename(directory).startswith(PREFIX):
        return
    point = f"{directory}/work"
    with contextlib.suppress(OSError):
        if daemon is not None and mounts.below(point, str(daemon)):
            namespaces.with_mounts_of(daemon, lambda: mounts.detach(point))
        if daemon is not None and mounts.below(point, str(daemon)):
            return
        for name in os.listdir(directory):
            if name != "work":
                os.unlink(f"{directory}/{name}")
        with contextlib.suppress(FileNotFoundError):
            # Never into a workspace: it is empty, or it is still mounted.
            os.rmdir(point)
        os.rmdir(directory)
