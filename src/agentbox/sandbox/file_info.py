# SPDX-License-Identifier: MIT
"""What is known about something in a sandbox's file system."""

from __future__ import annotations

import posixpath

from agentbox.records import dataclass


@dataclass(frozen=True, slots=True)
class FileInfo:
    """Something in a sandbox: `kind` is file, directory, link, fifo, socket or device; `target` of a link; `mode` the
    permission bits; `modified` seconds since 1970."""

    path: str
    kind: str
    size: int
    mode: int
    modified: float
    uid: int
    gid: int
    target: str | None = None

    @property
    def name(self) -> str:
        """The last part of its path."""
        return posixpath.basename(self.path)
