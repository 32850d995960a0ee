# SPDX-License-Identifier: MIT
"""The operating system's errors, translated where they occur in a workspace."""

from __future__ import annotations

import errno
import os

from agentbox.errors import WorkspaceError
from agentbox.workspace.names import shown

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def workspace_fault(error: OSError, path: str | bytes, action: str) -> WorkspaceError:
    """A WorkspaceError that says what could not be done with which file, and what to do next."""
    name = shown(path)
    if error.errno in FULL:
        return WorkspaceError(
            f"{name}: cannot be {action}: the workspace is full",
            hint="raise limits.disk_mb or send fewer bytes",
            path=name,
            errno=error.errno,
        )
    reason = os.strerror(error.errno) if error.errno else str(error)
    return WorkspaceError(
        f"{name}: cannot be {action}: {reason}",
        hint="see whether something else still changes the workspace, and who may write there",
        path=name,
        errno=error.errno,
    )


class Warnings:
    """Collects warnings and keeps the first `limit`; the rest is counted, so that a guest cannot fill memory."""

    def __init__(self, limit: int = 50) -> None:
        self._limit = limit
        self._kept: list[str] = []
        self._dropped = 0

    def add(self, text: str) -> None:
        """Keep or count one warning."""
        if len(self._kept) < self._limit:
            self._kept.append(text)
        else:
            self._dropped += 1

    def all(self) -> list[str]:
        """The kept warnings, and one more that counts those left out."""
        return [*self._kept, f"{self._dropped} more warnings like these"] if self._dropped else list(self._kept)
