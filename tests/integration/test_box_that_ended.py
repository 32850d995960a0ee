# SPDX-License-Identifier: MIT
"""A box that was killed before its program began: the caller hears that nothing has run, and not of a bug."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from agentbox.errors import IsolationError
from agentbox.isolation.backend import Watch
from agentbox.isolation.backends.jail import JailBackend
from agentbox.isolation.facilities import Facilities
from agentbox.models import Confinement, Limits
from tests.adversarial.host_state import descendants, field_of

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
            with open(os.devnull, "r+b") as nothing:
                stdio = [nothing.fileno()] * 3
                if terminal:
                    starting = first.start_on_terminal(["/bin/true"], {}, "/work", (24, 80))
                else:
                    starting = first.start(["/bin/true"], {}, "/work", stdio)
                with pytest.raises(IsolationError, match="before its program began"):
                    await starting
                ended = await second.start(["/bin/true"], {}, "/work", stdio)
            assert (await ended).status == 0
            for box in (first, second):
                await box.destroy()
        finally:
            await facilities.close()

    asyncio.run(main())


def test_a_program_cannot_begin_in_a_box_whose_judge_was_killed() -> None:
    limits = Limits(timeout_seconds=20, memory_mb=64, cpus=1.0, pids=16, disk_mb=8, max_output_bytes=1 << 16)

    async def main() -> None:
        before = set(descendants(os.getpid()))
        facilities = await Facilities.open()
        try:
            box = await JailBackend(facilities).launch(
                Confinement(limits), watch=Watch(("/bin/true", ()), lambda report: None)
            )
            os.kill(judge(before), signal.SIGKILL)
            with open(os.devnull, "r+b") as nothing, pytest.raises(IsolationError, match="before its program began"):
                await box.start(["/bin/true"], {}, "/work", [nothing.fileno()] * 3)
            await box.destroy()
        finally:
            await facilities.close()

    asyncio.run(main())


def judge(before: set[int]) -> int:
    """The exec judge of the only box that came since: the launcher's child, and the parent of the box's init."""
    below = set(descendants(os.getpid())) - before
    above = {pid: int(field_of(pid, "PPid")) for pid in below}
    (found,) = [pid for pid in below if above[pid] in below and pid in above.values()]
    return found
