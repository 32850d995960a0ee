# SPDX-License-Identifier: MIT
"""Boxes that were made for one run, as their owner sees them."""

from __future__ import annotations

import os

from agentbox.isolation import shared_memory
from agentbox.isolation.backend import LiveBox

_MIB = 1 << 20


class GvisorContainer(LiveBox):
    """A container with gVisor's kernel."""

    async def watch_memory(self) -> None:
        """Kill the box when its programs' memory passes memory_mb. Runs until cancelled."""
        if self._cgroup is not None:
            limit = self._confinement.limits.memory_mb * _MIB
            await shared_memory.watch(self._cgroup, limit, self._file_bytes, self._out_of_memory)

    def _file_bytes(self) -> int | None:
        if self.workspace_fd < 0:
            return None
        files = os.fstatvfs(self.workspace_fd)
        return (files.f_blocks - files.f_bfree) * files.f_frsize

    def _out_of_memory(self) -> None:
        self._oom = True
        self._box.kill()
