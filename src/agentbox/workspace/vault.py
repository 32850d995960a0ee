# SPDX-License-Identifier: MIT
"""The directories that hold snapshots: where an owner's files are, who may see them, and how one is written whole.

ROOT/<id>.tar.gz, <id>.json          of the owner "default"; S1's directories have the archives alone
ROOT/keys/<owner>/<id>.tar.gz, ...   of every other owner
.lock                                held while names are made, counted or swept
.new-<random>                        half-written; its writer holds a lock on it, so a dead one's can be told
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from agentbox.errors import WorkspaceError
from agentbox.models import DEFAULT_OWNER

KEYS = "keys"
_LOCK = ".lock"
_NEW = ".new-"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PLAIN_OWNER = re.compile(r"[a-z0-9_-]{1,40}\Z")


def owner_directory(owner: str) -> str:
    """A file name for an owner: plain names as they are, others with a digest, so that no two owners share one."""
    if _PLAIN_OWNER.match(owner):
        return owner
    readable = re.sub(r"[^a-z0-9_-]+", "-", owner.lower())[:40]
    return f"{readable}.{hashlib.sha256(owner.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


@contextlib.contextmanager
def opened_root(root: Path) -> Iterator[int]:
    """A descriptor of the store's root, made if it is missing, mode 0700.

    Raises WorkspaceError when it is a link, no directory, of another user, or writable by everyone.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(root, _DIRECTORY)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.EEXIST}:
            raise _refused(root, "is a link or no directory", "name the directory itself") from error
        raise _refused(root, f"cannot be opened: {error.strerror}", "make it, owned by the server's user") from error
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid():
            raise _refused(root, f"belongs to uid {status.st_uid}", f"chown it to uid {os.geteuid()}")
        if status.st_mode & stat.S_IWOTH:
            raise _refused(root, "is writable by everyone", "look at what is in it, then chmod 700 it")
        if status.st_mode & 0o077:
            os.fchmod(fd, 0o700)
        yield fd
    finally:
        os.close(fd)


def _refused(root: Path, what: str, how: str) -> WorkspaceError:
    return WorkspaceError(
        f"{root}: the snapshot directory {what}",
        hint=f"{how}, or set AGENTBOX_SNAPSHOT_DIR to a directory of the server's own",
        path=str(root),
    )


@contextlib.contextmanager
def opened_owner(root: Path, owner: str, *, create: bool = False) -> Iterator[int | None]:
    """A descriptor of an owner's directory; None when it does not exist and is not to be made."""
    with opened_root(root) as root_fd:
        if owner == DEFAULT_OWNER:
            yield root_fd
            return
        fd = root_fd
        try:
            for part in (KEYS, owner_directory(owner)):
                below = _opened_below(fd, part, create=create)
                if fd != root_fd:
                    os.close(fd)
                fd = root_fd
                if below is None:
                    yield None
                    return
                fd = below
            yield fd
        finally:
            if fd != root_fd:
                os.close(fd)


def _opened_below(dir_fd: int, name: str, *, create: bool) -> int | None:
    try:
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=dir_fd)
        return os.open(name, _DIRECTORY, dir_fd=dir_fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WorkspaceError(f"{name}: a directory of the snapshot store cannot be opened: {error.strerror}") from error


def all_directories(root_fd: int) -> Iterator[int]:
    """A descriptor of each owner's directory in turn, valid until the next step."""
    yield root_fd
    keys = _opened_below(root_fd, KEYS, create=False)
    if keys is None:
        return
    try:
        for name in sorted(os.listdir(keys)):
            try:
                fd = os.open(name, _DIRECTORY, dir_fd=keys)
            except OSError:
                continue
            try:
                yield fd
            finally:
                os.close(fd)
    finally:
        os.close(keys)


@contextlib.contextmanager
def locked(dir_fd: int) -> Iterator[None]:
    """Hold the lock of a directory, against threads and processes; short work only."""
    fd = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def new_file(dir_fd: int) -> Iterator[tuple[int, str]]:
    """A new file (descriptor, name, mode 0600) that is removed at the end unless it was renamed."""
    name = _NEW + secrets.token_hex(8)
    with locked(dir_fd):
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
        fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield fd, name
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=dir_fd)
        os.close(fd)


def sweep_new_files(dir_fd: int) -> int:
    """Remove half-written files that no living writer holds; returns how many."""
    removed = 0
    with locked(dir_fd):
        for name in os.listdir(dir_fd):
            if not name.startswith(_NEW):
                continue
            try:
                fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
            except OSError:
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(name, dir_fd=dir_fd)
                removed += 1
            except OSError:
                continue
            finally:
                os.close(fd)
    return removed
