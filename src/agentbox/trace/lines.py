# SPDX-License-Identifier: MIT
"""Reading the lines of a file of any size in bounded memory."""

from __future__ import annotations

import os
import stat

from agentbox.errors import TraceError
from agentbox.light.contexts import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

# Larger ones are new pages of the kernel's for every read, and do not stay in the processor's cache.
_BLOCK_BYTES = 96 << 10
MAX_READ_BYTES = 64 << 20


class LineTooLongError(ValueError):
    """A line is longer than any line of a trace."""


@contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """The file, unbuffered. Raises TraceError when there is none, or when it is no regular file."""
    try:
        # Without O_NONBLOCK the opening of a named pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}", hint="name the trace: -t FILE") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise TraceError(f"{path}: is no regular file", hint="name the trace: -t FILE")
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        try:
            yield file
        except OSError as error:
            raise TraceError(f"{path}: cannot be read: {error.strerror}", hint="check the disk") from error


def texts(file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Whole lines with their ends, many at a time in one text, each with True; a last line without an end comes with
    False.

    Raises LineTooLongError for a line of more than 64 MiB.
    """
    carried = b""
    # What is carried is copied with every read, so a long line is read in ever larger steps.
    while data := file.read(max(_BLOCK_BYTES, len(carried))):
        data = carried + data
        end = data.rfind(b"\n") + 1
        carried = data[end:]
        if len(carried) > MAX_READ_BYTES:
            raise LineTooLongError
        if end:
            yield data[:end], True
    if carried:
        yield carried, False


def blocks(file: BinaryIO) -> Iterator[tuple[list[bytes], bool]]:
    """As `texts`, in lists of lines without their ends."""
    for text, ended in texts(file):
        yield (text[:-1].split(b"\n") if ended else [text]), ended


def lines(file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Each line without its end, and whether it had one. Raises LineTooLongError."""
    for block, ended in blocks(file):
        for line in block:
            yield line, ended
