# SPDX-License-Identifier: MIT
"""The memory of programs in a kernel of their own: one file in the host's memory, of the kind of the box's files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentbox.linux.cgroup_box import Cgroup

_POLL_SECONDS = 0.05
# Where half of it is used: in the slower time a program may take a hundred megabytes more.
_CLOSER_POLL_SECONDS = 0.01


async def watch(
    cgroup: Cgroup, limit_bytes: int, file_bytes: Callable[[], int | None], on_passed: Callable[[], None]
) -> None:
    """Call `on_passed` whenever a box is found to have more than the limit, without its own files. `file_bytes` tells
    what those take, None where that is not known any more. Runs until cancelled."""
    pause = _POLL_SECONDS
    while True:
        await asyncio.sleep(pause)
        shared, files = cgroup.shared_bytes(), file_bytes()
        if shared is None or files is None:
            continue
        used = shared - files
        pause = _CLOSER_POLL_SECONDS if used > limit_bytes // 2 else _POLL_SECONDS
        if used > limit_bytes:
            on_passed()
