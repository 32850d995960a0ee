# SPDX-License-Identifier: MIT
"""Where a trace begins: its file, which nobody made before."""

from __future__ import annotations

import os

from agentbox.errors import TraceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


def create(path: str | Path) -> int:
    """The descriptor of a new, empty trace. No link is followed on the last step. Raises TraceError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return os.open(os.path.basename(path), flags, 0o600, dir_fd=directory)
        finally:
            os.close(directory)
    except FileExistsError as error:
        raise TraceError(
            f"{path}: exists already", hint="a trace is never overwritten: name another file, or leave out -t"
        ) from error
    except OSError as error:
        raise TraceError(f"{path}: cannot be made: {error.strerror}", hint="check the directory") from error
