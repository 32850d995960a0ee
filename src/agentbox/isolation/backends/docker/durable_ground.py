# SPDX-License-Identifier: MIT
"""What a durable container has on the host beside its workspace: a directory with the filter of its programs, its list
of users, and the mounts of the workspace, or of its parts where a policy shows not all of it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Sequence

from agentbox.errors import ConfinementError
from agentbox.isolation.backends.docker.ground import FILTER, INIT, NATIVE_INIT, STAT, binds_of, listen_in, loading
from agentbox.isolation.durable import HOME, WORKSPACE, agent_files
from agentbox.isolation.plan import WorkspaceView, aliases, parts_of
from agentbox.linux import mounts, namespaces, seccomp

PREFIX = "agentbox-container-"
_BARE = "bare"


class DurableGround:
    """Made for a user of the container, who can write the workspace; as root by a mount on which its owner
    and that user change places, so that what the user makes is the owner's on the disk. Where the engine's mounts
    cannot be reached, as from a container, a root gives the workspace itself to that user."""

    def __init__(
        self, workspace: str, uid: int, *, daemon: int | None, gvisor: bool, view: WorkspaceView | None = None
    ) -> None:
        # A server in a container was given a temporary directory that the engine sees too; its /run is its own.
        base = "/run" if os.geteuid() == 0 and daemon is not None and os.path.isdir("/run") else None
        self.directory = tempfile.mkdtemp(prefix=PREFIX, dir=base)
        self._shown: list[tuple[str, str, bool]] = [(workspace, WORKSPACE, True), (workspace, HOME, True)]
        self._sockets: list[tuple[str, str, bool]] = []
        self._loaded = (STAT,) if gvisor else ()
        self._daemon = daemon
        try:
            self.write("filter", seccomp.build())
            self.write("preload", loading(self._loaded))
            self.write("passwd", b"")
            self.write("group", b"")
            mounts_itself = os.geteuid() == 0 and daemon is not None
            if view is not None and not mounts_itself:
                raise ConfinementError(
                    "parts of a workspace can be shown to a container by a server that is root beside the engine only",
                    hint="start agentbox as root on the engine's machine, or leave rules about files out",
                    step="workspace",
                    errno=errno.EPERM,
                )
            if view is not None and daemon is not None:
                self._mount_parts(view, workspace, uid, daemon)
            elif daemon is not None and mounts_itself:
                point = self._mount(mounts.clone_tree(workspace), "work", uid, daemon)
                self._shown = [(point, WORKSPACE, True), (point, HOME, True)]
            elif os.geteuid() == 0:
                _give(workspace, uid)
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

    @classmethod
    def found(cls, directory: str, daemon: int | None) -> DurableGround:
        """What another process made, to be cleared by this one."""
        ground = cls.__new__(cls)
        ground.directory, ground._daemon = directory, daemon
        ground._shown, ground._sockets, ground._loaded = [], [], ()
        return ground

    def binds(self) -> tuple[tuple[str, str, bool], ...]:
        """(source, target, writable) of everything that the container shows of the host."""
        here = self.directory
        return (
            *self._shown,
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

    def _mount(self, tree: int, name: str, uid: int, daemon: int) -> str:
        """Put a detached mount, which is closed here, into the directory, for the engine to see; its path."""
        point = f"{self.directory}/{name}"
        try:
            if stat.S_ISDIR(os.fstat(tree).st_mode):
                os.mkdir(point, 0o700)
            else:
                os.close(os.open(point, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            exchange_owner(tree, uid)
            namespaces.with_mounts_of(daemon, lambda: mounts.attach(tree, point))
        finally:
            os.close(tree)
        return point

    def _mount_parts(self, view: WorkspaceView, workspace: str, uid: int, daemon: int) -> None:
        """What the view leaves of the workspace. The engine is given paths, and would follow what a guest made a link:
        so each part is mounted here first, without following any."""
        self._shown = []
        parts = parts_of(view, workspace, HOME)
        points: dict[str, str] = {}
        for source, inside, target, writable in parts:
            if inside not in points:
                tree = mounts.clone_tree_below(source, inside)
                points[inside] = self._mount(tree, f"part-{len(points)}", uid, daemon)
            self._shown = [one for one in self._shown if one[1] != target]
            self._shown.append((points[inside], target, writable))
        for top in (WORKSPACE, HOME):
            if not any(target == top for _, target, _ in self._shown):
                self._show_bare(top, [target for _, target, _ in self._shown])
        for path in view.hidden:
            self._hide(workspace, path[len(WORKSPACE) :].strip("/"), path)

    def _show_bare(self, top: str, targets: Sequence[str]) -> None:
        """A directory of which only parts are shown: read-only, with something for each part to be put upon."""
        bare = f"{self.directory}/{_BARE}"
        if not os.path.isdir(bare):
            os.mkdir(bare, 0o755)
            kinds = {target: source for source, target, _ in self._shown}
            for target in sorted(one for one in targets if one.startswith(f"{top}/")):
                place = f"{bare}{target[len(top) :]}"
                os.makedirs(place if os.path.isdir(kinds[target]) else os.path.dirname(place), exist_ok=True)
                if not os.path.isdir(place):
                    os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        self._shown.insert(0, (bare, top, False))

    def _hide(self, workspace: str, inside: str, path: str) -> None:
        """Cover what is there by something that opens for nobody."""
        tree = mounts.clone_tree_below(workspace, inside)
        try:
            name = "no-directory" if stat.S_ISDIR(os.fstat(tree).st_mode) else "no-file"
        finally:
            os.close(tree)
        cover = f"{self.directory}/{name}"
        with contextlib.suppress(FileExistsError):
            if name == "no-directory":
                os.mkdir(cover, 0)
            else:
                os.close(os.open(cover, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0))
        bare = f"{self.directory}/{_BARE}"
        # What is not shown needs no cover, and has no place for one.
        for one in aliases([path], HOME):
            if any(
                one == target or one.startswith(f"{target}/") for source, target, _ in self._shown if source != bare
            ):
                self._shown = [shown for shown in self._shown if shown[1] != one]
                self._shown.append((cover, one, False))


def _give(directory: str, uid: int) -> None:
    """Let everything in a directory belong to that id, and follow no link. Raises OSError."""
    for _, directories, files, fd in os.fwalk(directory):
        os.fchown(fd, uid, uid)
        for name in (*directories, *files):
            os.chown(name, uid, uid, dir_fd=fd, follow_symlinks=False)


def mapped(path: str, uid: int) -> int:
    """A detached mount of a file or directory, as a descriptor, on which its owner and that user change places. Raises
    OSError."""
    tree = mounts.clone_tree(path)
    try:
        exchange_owner(tree, uid)
    except BaseException:
        os.close(tree)
        raise
    return tree


def exchange_owner(tree: int, uid: int) -> None:
    """Let the owner of what a detached mount shows and that user change places on it. Raises OSError."""
    owner = os.fstat(tree).st_uid
    mounts.set_attributes(tree, mounts.ATTR_NOSUID | mounts.ATTR_NODEV)
    if owner == uid:
        return
    # gVisor makes files as root, then gives them away.
    same = (0,) if 0 not in (owner, uid) else ()
    maps = namespaces.swapping_namespace(owner, uid, *same)
    try:
        mounts.map_ids(tree, maps)
    finally:
        os.close(maps)


def _detach(points: Sequence[str]) -> None:
    for point in points:
        mounts.detach(point)


def clear(directory: str, daemon: int | None) -> None:
    """Remove what a ground made, not the workspace. Does not raise; a directory of another name is not touched."""
    if not os.path.basename(directory).startswith(PREFIX):
        return
    with contextlib.suppress(OSError):
        points = [] if daemon is None else mounts.below(directory, str(daemon))
        if daemon is not None and points:
            namespaces.with_mounts_of(daemon, lambda: _detach(points))
        if daemon is not None and mounts.below(directory, str(daemon)):
            # Never into a workspace.
            return
        for name in os.listdir(directory):
            path = f"{directory}/{name}"
            if not os.path.isdir(path):
                os.unlink(path)
            elif name == _BARE:
                shutil.rmtree(path)
            else:
                # A place of a mount: empty, or not to be entered.
                os.rmdir(path)
        os.rmdir(directory)
