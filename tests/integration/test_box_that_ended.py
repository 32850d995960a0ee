# SPDX-License-Identifier: MIT
"""A box that was killed before its program began: the caller hears that nothing has run, and not of a bug."""

from __future__ import annotations

import asyncio
import os

import pytest

from agentbox.errors import IsolationError
from agentbox.isolation.backends.jail import JailBackend
from agentbox.isolation.facilities import Facilities
from agentbox.models import Confinement, Limits

pytestmark = pytest.mark.linux


@pytest.mark.parametrize("terminal", [False, True])
def test_a_program_cannot_begin_in_a_box_that_was_killed(terminal: bool) -> None:
    limits = Limits(timeout_seconds=20, memory_mb=64, cpus=1.0, pids=16, disk_mb=8, max_output_bytes=1 << 16)

    async def main() -> None:
        facilities = await Facilities.open()
        try:
            jail = JailBackend(facilities)
            first, second = [await jail.launch(Confinement(limits)) for _ in range(2)]
            first.kill()
            with open(os.devnull, "r+b") as nothing, pytest.raises(IsolationError, match="before its program began"):
                if terminal:
                    await first.start_on_terminal(["/bin/true"], {}, "/work", (24, 80))
                else:
                    await first.start(["/bin/true"], {}, "/work", [nothing.fileno()] * 3)
            with open(os.devnull, "r+b") as nothing:
                ended = await second.start(["/bin/true"], {}, "/work", [nothing.fileno()] * 3)
            assert (await ended).status == 0
            for box in (first, second):
                await box.destroy()
        finally:
            await facilities.close()

    asyncio.run(main())
