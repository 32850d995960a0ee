# SPDX-License-Identifier: MIT
"""Boxes that were made for one run, as their owner sees them."""

from __future__ import annotations

import asyncio
import os

from agentbox.isolation.backend import LiveBox

_MIB = 1 << 20
_MEMORY_POLL_SECONDS = 0.05
# Where half of it is used: in the slower time a program may take a hundred megabytes more.
_CLOSER_POLL_SECONDS = 0.01


class GvisorContainer(LiveBox):
    """A container with gVisor's kernel: what its programs have is one file in the host's memory, of the same kind as
    the box's own files."""

    async def watch_memory(self) -> None:
        """Kill the box when its programs' memory passes memory_mb. Runs until cancelled."""
        if self._cgroup is None:
            return
        limit = self._confinement.limits.memory_mb * _MIB
        pause = _MEMORY_POLL_SECONDS
        while True:
            await asyncio.sleep(pause)
            shared = self._cgroup.shared_bytes()
            if shared is None or self.workspace_fd < 0:
                continue
            files = os.fstatvfs(self.workspace_fd)
            used = shared - (files.f_blocks - files.f_bfree) * files.f_frsize
            pause = _CLOSER_POLL_SECONDS if used > limit // 2 else _MEMORY_POLL_SECONDS
            if used > limit:
                self._oom = True
                self._box.kill()
