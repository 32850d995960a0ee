# SPDX-License-Identifier: MIT
"""The file that holds workspaces where the host can: a btrfs in a sparse image, mounted while any process uses it.

`DIRECTORY/image` is the file, `DIRECTORY/mounted` where its content is seen, by the host's user alone. Whoever uses it
holds a shared lock on `DIRECTORY/users`, which ends with its process; the last one takes the mount away.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from agentbox.errors import WorkspaceError
from agentbox.linux import btrfs, loop_devices, mounts

MIN_BYTES = 256 << 20
_PROGRAMS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MKFS_SECONDS = 120
_FLAGS = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOATIME
_ROOM = ".room"
# More bytes together than the first part has.
_ROOM_PIECE_BYTES = 16000
_ROOM_PIECES = 700
_DETACH_TRIES = 20
_DETACH_SECONDS = 0.05


def why_not() -> str:
    """What this host lacks, as far as can be told without trying; empty when it seems to lack nothing."""
    if os.geteuid() != 0:
        return "only root can mount an image"
    if not os.path.exists("/dev/loop-control"):
        return "there are no loop devices"
    if mkfs() is None:
        return "mkfs.btrfs is not installed (Debian: btrfs-progs)"
    return ""


def mkfs() -> str | None:
    """The program that makes the file system."""
    return shutil.which("mkfs.btrfs", path=_PROGRAMS)


class VolumeImage:
    """The image in `directory`, for one process at a time; see `attach` and `detach`. Calls block."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        self._directory = directory
        self._size_bytes = size_bytes
        self._users = -1
        self.root = directory / "mounted"

    def attach(self) -> None:
        """Mount it, making it first where it is not there. Raises WorkspaceError with what is in the way."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._directory.chmod(0o700)
            self._directory = Path(os.path.realpath(self._directory))
            self.root = self._directory / "mounted"
            with self._changing():
                users = os.open(self._directory / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    if not self._is_mounted() or not self._is_writable(users):
                        self._mount()
                    self._grow()
                    fcntl.flock(users, fcntl.LOCK_SH)
                except BaseException:
                    os.close(users)
                    raise
                self._users = users
        except (OSError, subprocess.SubprocessError) as error:
            raise WorkspaceError(
                f"the image of workspaces in {self._directory} cannot be mounted: {error}",
                hint="AGENTBOX_WORKSPACE_VOLUMES=directories does without it, and without a limit of disk space",
                errno=getattr(error, "errno", None) or 0,
            ) from error

    def detach(self) -> None:
        """Not used any more by this process; unmounted where no other uses it either. Does not raise."""
        users, self._users = self._users, -1
        if users < 0:
            return
        try:
            with contextlib.suppress(OSError), self._changing():
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._unmount()
        finally:
            os.close(users)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        fd = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _is_mounted(self) -> bool:
        return str(self.root) in mounts.below(str(self.root))

    def _is_writable(self, users: int) -> bool:
        """False when it is not mounted any more: one that could not write to its disk, which nobody uses now."""
        if not os.statvfs(self.root).f_flag & os.ST_RDONLY:
            return True
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(
                "it takes no more writes, as its disk was full or failed; make room, then end all sandboxes"
            ) from None
        self._unmount()
        return False

    def _mount(self) -> None:
        image = self._directory / "image"
        self.root.mkdir(exist_ok=True, mode=0o700)
        if not image.exists():
            self._make(image)
        # Another mount namespace may have it mounted still: the same device, or two would write to one file.
        device, path = -1, loop_devices.of_file(str(image))
        try:
            if path is None:
                file = os.open(image, os.O_RDWR | os.O_CLOEXEC)
                try:
                    device, path = loop_devices.attach(file)
                finally:
                    os.close(file)
            mounts.mount(path, str(self.root), "btrfs", _FLAGS)
        finally:
            if device >= 0:
                os.close(device)
        self._furnish()

    def _make(self, image: Path) -> None:
        program = mkfs()
        if program is None:
            raise OSError(why_not())
        new = image.with_suffix(".new")
        with open(new, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.truncate(max(MIN_BYTES, self._size_bytes or default_bytes(self._directory)))
        made = subprocess.run(
            [program, "-q", "-f", "-m", "single", "-d", "single", str(new)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_MKFS_SECONDS,
            check=False,
        )
        if made.returncode:
            new.unlink()
            raise OSError(f"{program}: {made.stderr.strip()[-300:]}")
        os.rename(new, image)

    def _furnish(self) -> None:
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            btrfs.enable_quotas(fd)
            with contextlib.suppress(FileExistsError):
                btrfs.create(fd, _ROOM)
                self._make_room()
                btrfs.sync(fd)
        finally:
            os.close(fd)

    def _make_room(self) -> None:
        """Have a second, larger part of the image set apart for what describes files: the first is so small that a
        guest who filled all the rest with data would leave no room in which anything could be made or removed."""
        path = self.root / _ROOM / "room"
        path.touch(mode=0o600)
        for number in range(_ROOM_PIECES):
            os.setxattr(path, f"user.{number}", bytes(_ROOM_PIECE_BYTES))

    def _grow(self) -> None:
        image = self._directory / "image"
        wanted = max(MIN_BYTES, self._size_bytes) if self._size_bytes else 0
        if image.stat().st_size >= wanted:
            return
        os.truncate(image, wanted)
        path = loop_devices.of_file(str(image))
        if path is None:
            raise OSError("the device of the image is gone")
        device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        root = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            loop_devices.grow(device)
            btrfs.grow(root)
        finally:
            os.close(root)
            os.close(device)

    def _unmount(self) -> None:
        for attempt in range(_DETACH_TRIES):
            try:
                mounts.unmount(str(self.root))
                return
            except OSError:
                # A box that has just ended may hold it for a moment; one that stays mounted is found by the next.
                if attempt == _DETACH_TRIES - 1:
                    raise
                time.sleep(_DETACH_SECONDS)


def default_bytes(directory: Path) -> int:
    """Half of what is free there, 64 GiB at most."""
    free = shutil.disk_usage(directory).free
    return min(free // 2, 64 << 30) & ~((1 << 20) - 1)
