# SPDX-License-Identifier: MIT
"""Workspaces that outlive a box, and their snapshots: in an image with a limit for each where the host can, else in
plain directories.

    live/OWNER/NAME     the workspace of one sandbox; goes with it, or at the next start when OWNER is dead
    kept/GROUP/NAME     one that has a name; without an image, of GROUP "local", STATE/workspaces/NAME
    snapshots/ID        with ID.json beside it

all below STATE/volumes/mounted, or STATE/volumes/directories without an image. Calls block.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

from agentbox.errors import WorkspaceError
from agentbox.linux.cgroup_owners import is_dead, owner_name
from agentbox.linux.renaming import exchange
from agentbox.records import dataclass
from agentbox.workspace import volume_image
from agentbox.workspace.volume_grounds import Directories, Ground, Subvolumes, Told
from agentbox.workspace.volume_image import VolumeImage
from agentbox.workspace.volume_snapshots import Snapshots

LOCAL = "local"
_NEW = ".new."


@dataclass(frozen=True, slots=True)
class Workspace:
    """A directory of the host that a box shows. `held` says whether the kernel holds its size; `kept` whether it
    outlives its sandbox; `key` tells it from every other one of the state directory."""

    path: Path
    key: str
    held: bool
    kept: bool


class Volumes:
    """The workspaces of one state directory. Open it with `open_volumes`, and `close` it. Any thread may call."""

    def __init__(self, state: Path, ground: Ground, root: Path, lacking: str) -> None:
        self._state = state
        self._ground = ground
        self.lacking = lacking
        self._live = root / "live" / owner_name()
        self._all_live = root / "live"
        self._kept = root / "kept"
        self._marks = state / "volumes" / "kept"
        self._lock = threading.Lock()
        for directory in (self._all_live, self._kept, root / "snapshots", self._marks):
            directory.mkdir(exist_ok=True, parents=True, mode=0o700)
        self.snapshots = Snapshots(root / "snapshots", ground)

    @property
    def held(self) -> bool:
        """Whether the kernel holds the size of new workspaces."""
        return self._ground.held

    def new(self, name: str, limit_bytes: int, content: Path | None = None) -> Workspace:
        """A workspace of this process: empty, or what `park` or `park_snapshot` gave. Raises WorkspaceError."""
        path = self._live / name
        self._place(path, limit_bytes, content)
        return Workspace(path, name, self.held, False)

    def park(self, source: Path, limit_bytes: int, told: Told | None = None) -> Path:
        """A copy of a directory that waits for its place: see `new` and `named`. Raises WorkspaceError."""
        path = self._live / f".copy-{secrets.token_hex(6)}"
        self._live.mkdir(exist_ok=True, mode=0o700)
        self._ground.copy(source, path, limit_bytes, told=told)
        return path

    def park_snapshot(self, snapshot_id: str, limit_bytes: int, told: Told | None = None) -> Path:
        """As `park`, with what a snapshot holds. Raises NotFoundError, WorkspaceError."""
        return self.park(self.snapshots.path(snapshot_id), limit_bytes, told)

    def park_empty(self, limit_bytes: int) -> Path:
        """As `park`, to be filled. Raises WorkspaceError."""
        path = self._live / f".copy-{secrets.token_hex(6)}"
        self._place(path, limit_bytes, None)
        return path

    def discard(self, content: Path) -> None:
        """Remove what was parked and not used. Does not raise."""
        with contextlib.suppress(OSError, WorkspaceError):
            self._ground.remove(content)

    def _place(self, path: Path, limit_bytes: int, content: Path | None) -> None:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        if content is None:
            self._ground.make(path, limit_bytes)
            return
        try:
            os.rename(content, path)
        except OSError as error:
            raise WorkspaceError(
                f"the workspace {path.name} cannot be made: {error.strerror}",
                hint=f"look at {path.parent}",
                errno=error.errno,
            ) from error

    def named(self, name: str, limit_bytes: int, group: str = LOCAL, content: Path | None = None) -> Workspace:
        """One that is kept, made where it is not there: empty, or of `content` (see `park`), which is an error where
        it is there. `group` is whose it is. Raises WorkspaceError."""
        path, mark = self._kept / group / name, self._marks / f"{group}.{name}"
        old = self._state / "workspaces" / name
        with self._lock:
            held = self.held and not (group == LOCAL and old.is_dir())
            if group == LOCAL and not held:
                path = old
            if path.is_dir():
                if content is not None:
                    raise WorkspaceError(f"there is a workspace {name} already", hint="use another name, or restore it")
                if held:
                    self._ground.limit(path, limit_bytes)
            elif not held and mark.exists():
                # It must not seem to be empty.
                raise WorkspaceError(
                    f"workspace {name} lies in the image {self._state}/volumes/image, which is not mounted here: "
                    f"{self.lacking}",
                    hint="make that possible again, or use another name",
                )
            else:
                if held:
                    mark.touch(mode=0o600)
                self._place(path, limit_bytes, content)
            return Workspace(path, f"{group}/{name}", held, True)

    def remove(self, workspace: Workspace) -> None:
        """Remove one, also a kept one. Raises WorkspaceError."""
        self.snapshots.forget(workspace.key, all_of_them=workspace.kept)
        self._ground.remove(workspace.path)
        (self._marks / workspace.key.replace("/", ".", 1)).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            workspace.path.parent.rmdir()

    def restore(self, workspace: Workspace, snapshot_id: str, limit_bytes: int, told: Told | None = None) -> None:
        """Give a workspace the content of a snapshot, or leave it as it is. Nothing may use it. Raises NotFoundError,
        WorkspaceError."""
        source = self.snapshots.path(snapshot_id)
        ground = self._ground if workspace.held == self.held else Directories()
        new = workspace.path.with_name(f"{_NEW}{owner_name()}{_NEW}{secrets.token_hex(6)}")
        ground.copy(source, new, limit_bytes, told=told)
        try:
            exchange(str(new), str(workspace.path))
        except OSError as error:
            ground.remove(new)
            raise WorkspaceError(
                f"the workspace {workspace.path.name} cannot be replaced: {error.strerror}",
                hint=f"look at {workspace.path.parent}",
                errno=error.errno,
            ) from error
        # Which holds what the workspace was.
        ground.remove(new)

    def spares(self, limit_bytes: int) -> Spares:
        """What makes workspaces for boxes that wait in stock."""
        return Spares(self, limit_bytes)

    def sweep(self) -> list[str]:
        """Remove what dead owners left; returns names. Does not raise."""
        removed = []
        self.snapshots.sweep()
        for owner in self._dead():
            for path in list(_entries(owner)):
                with contextlib.suppress(OSError, WorkspaceError):
                    self.snapshots.forget(path.name)
                    self._ground.remove(path)
                    removed.append(path.name)
            with contextlib.suppress(OSError):
                owner.rmdir()
        groups = [*_entries(self._kept), self._state / "workspaces"]
        for kept in (one for group in groups for one in _entries(group)):
            # Of a restore that was cut off.
            if kept.name.startswith(_NEW) and is_dead(kept.name.split(_NEW)[1]):
                with contextlib.suppress(OSError, WorkspaceError):
                    self._ground.remove(kept)
        return removed

    def _dead(self) -> list[Path]:
        return [owner for owner in _entries(self._all_live) if is_dead(owner.name)]


class Spares:
    """Makes empty workspaces of one size for boxes that wait, and puts them where a sandbox wants its own. Two of the
    same `key` are alike."""

    def __init__(self, volumes: Volumes, limit_bytes: int) -> None:
        self._volumes = volumes
        self._limit_bytes = limit_bytes
        self.key = f"{volumes._live}:{limit_bytes}"

    def make(self) -> str:
        """One that waits. Raises WorkspaceError."""
        return str(self._volumes.park_empty(self._limit_bytes))

    def give(self, spare: str, workspace: str) -> None:
        """Put it in place of an empty workspace. Raises OSError, WorkspaceError."""
        self._volumes._ground.remove(Path(workspace))
        os.rename(spare, workspace)

    def discard(self, spare: str) -> None:
        """Remove one that waits no more. Does not raise."""
        self._volumes.discard(Path(spare))


class _Opened:
    """What is open in this process, and how often."""

    def __init__(self, volumes: Volumes, image: VolumeImage | None) -> None:
        self.volumes = volumes
        self.image = image
        self.users = 0


_OPENED: dict[str, _Opened] = {}
_OPENING = threading.Lock()


def open_volumes(state: Path, choice: str, size_bytes: int) -> Volumes:
    """The workspaces of a state directory, shared by all of this process; `close_volumes` once for each call.

    `choice` is "image", "directories", or "auto": an image where one can be had. `size_bytes` is how large it may
    become, 0 for half of what is free. Raises WorkspaceError, for "auto" only where an image is there and cannot be
    mounted.
    """
    key = os.path.realpath(state)
    with _OPENING:
        found = _OPENED.get(key)
        if found is None:
            found = _OPENED[key] = _open(Path(key), choice, size_bytes)
        found.users += 1
        return found.volumes


def close_volumes(state: Path) -> None:
    """One user less; the last one of all processes takes the mount away. Does not raise."""
    key = os.path.realpath(state)
    with _OPENING:
        found = _OPENED.get(key)
        if found is None:
            return
        found.users -= 1
        if not found.users:
            del _OPENED[key]
            if found.image is not None:
                found.image.detach()


def _open(state: Path, choice: str, size_bytes: int) -> _Opened:
    directory = state / "volumes"
    lacking = "it was not asked for" if choice == "directories" else volume_image.why_not()
    if choice == "image" and lacking:
        raise WorkspaceError(
            f"workspaces cannot lie in an image here: {lacking}",
            hint="set AGENTBOX_WORKSPACE_VOLUMES=auto, or directories, and go without a limit of disk space",
        )
    if not lacking:
        image = VolumeImage(directory, size_bytes)
        try:
            image.attach()
        except WorkspaceError as error:
            # With an image there, its workspaces would seem to be lost.
            if choice == "image" or (directory / "image").exists():
                raise
            lacking = error.message
        else:
            try:
                return _Opened(Volumes(state, Subvolumes(), image.root, ""), image)
            except BaseException:
                image.detach()
                raise
    return _Opened(Volumes(state, Directories(), directory / "directories", lacking), None)


def _entries(directory: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            yield Path(entry.path)
