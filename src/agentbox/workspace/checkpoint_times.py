# SPDX-License-Identifier: MIT
"""What the times of a file can be believed about its content.

A program cannot set when its file last changed (ctime), so the same time means the same content, with two exceptions.
The clock of a file system has ticks, so what was changed a moment before it was looked at may change again within the
same one. And who maps a file into memory is seen only at the first write to a page, again once the kernel has written
that page out; some file systems, like tmpfs, see nothing of it.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentbox.workspace.checkpoint_entries import Entry

_NOTICING = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "zfs"})
# Whatever a run that begins now does to the file will show; whatever anybody does will.
FOR_A_RUN, LASTING = 1, 2
_TICK_NS = 50_000_000
_WRITTEN_OUT_SECONDS = 60


class Trust:
    """How far times can be trusted by somebody who began to look at the files now."""

    def __init__(self) -> None:
        self.began_ns = time.time_ns()
        self._written_out_ns = _written_out_seconds() * 1_000_000_000
        self._mounts: list[tuple[str, str]] | None = None
        self._kinds: dict[int, bool] = {}

    def in_times_of(self, path: str, entry: Entry) -> int:
        """How far the times of a file that is read now vouch for its content: 0, `FOR_A_RUN` or `LASTING`."""
        if entry.ctime >= self.began_ns - _TICK_NS or not self._notices(path, entry.device):
            return 0
        return LASTING if entry.ctime < self.began_ns - self._written_out_ns else FOR_A_RUN

    def _notices(self, path: str, device: int) -> bool:
        """Whether a file system notes the time when a mapped page is written."""
        known = self._kinds.get(device)
        if known is None:
            known = self._kinds[device] = self._kind_of(path) in _NOTICING
        return known

    def _kind_of(self, path: str) -> str:
        if self._mounts is None:
            self._mounts = _mounts()
        best, kind = "", ""
        for point, name in self._mounts:
            if len(point) >= len(best) and (path == point or path.startswith(point.rstrip("/") + "/")):
                best, kind = point, name
        return kind


def _mounts() -> list[tuple[str, str]]:
    """Mount points and the kinds of their file systems, later ones hiding earlier ones."""
    found = []
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            for line in file:
                fields, _, more = line.partition(b" - ")
                point = fields.split()[4].decode("unicode_escape", "surrogateescape")
                found.append((point, os.fsdecode(more.split()[0])))
    except (OSError, IndexError, ValueError):
        return []
    return found


def _written_out_seconds() -> int:
    """How long a changed page may wait until the kernel writes it out."""
    waiting = 0
    for name in ("dirty_expire_centisecs", "dirty_writeback_centisecs"):
        try:
            with open(f"/proc/sys/vm/{name}", "rb") as file:
                waiting += int(file.read()) // 100
        except (OSError, ValueError):
            return _WRITTEN_OUT_SECONDS
    return max(waiting, 5)
