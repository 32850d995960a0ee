# SPDX-License-Identifier: MIT
"""The files of a checkpoint's own: JSON behind its digest, written whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from agentbox.errors import CheckpointError
from agentbox.workspace.checkpoint_entries import Entry
from agentbox.workspace.checkpoint_places import open_directory

DIRECTORY = ".agentbox/checkpoints"
FORMAT = "agentbox-checkpoint/1"
A_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_A_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}/[a-z]+(?:-[0-9]+)?\Z")


def dump(value: Any) -> bytes:
    """A file of a checkpoint: the digest of what follows, and JSON."""
    text = json.dumps(value, separators=(",", ":")).encode("ascii")
    return hashlib.sha256(text).hexdigest().encode("ascii") + b"\n" + text


def load(text: bytes) -> Any:
    """What `dump` gave. Raises CheckpointError where it was changed."""
    digest, _, body = text.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode("ascii") != digest:
        raise CheckpointError(
            "the checkpoint is damaged: a file of it was changed", hint="nothing was restored from it"
        )
    value = json.loads(body)
    if value.get("format") != FORMAT:
        raise CheckpointError(
            "the checkpoint has a form that this agentbox does not know", hint="use the version that took it"
        )
    return value


def entry_of_row(row: Any) -> Entry:
    """An entry as it was kept. Raises CheckpointError."""
    entry = Entry(*row)
    if entry.file and not _FILE.match(entry.file):
        raise CheckpointError("the checkpoint is damaged", hint="it cannot be used any more")
    return entry


def write_file(dir_fd: int, name: str, text: bytes) -> None:
    """Write a new file. Raises OSError."""
    with open(os.open(name, _A_NEW_FILE, 0o600, dir_fd=dir_fd), "wb") as file:
        file.write(text)


def replace_file(dir_fd: int, name: str, text: bytes) -> None:
    """Write a file in the place of one that may be there; whatever is killed, it is the old or the new one. Raises
    OSError."""
    new = f"{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new, dir_fd=dir_fd)
    write_file(dir_fd, new, text)
    os.rename(new, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)


@contextlib.contextmanager
def open_no_links(path: str) -> Iterator[int]:
    """A descriptor of a directory, for reading too, no part of whose path is a link. Raises OSError."""
    place = open_directory(path)
    try:
        fd = os.open(".", A_DIRECTORY, dir_fd=place)
    finally:
        os.close(place)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def opened_below(store_fd: int, name: str) -> Iterator[int]:
    """A descriptor of the directory of that name. Raises OSError."""
    fd = os.open(name, A_DIRECTORY, dir_fd=store_fd)
    try:
        yield fd
    finally:
        os.close(fd)
