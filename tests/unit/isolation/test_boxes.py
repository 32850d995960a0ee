# SPDX-License-Identifier: MIT
"""The owner's side of a box, against an init that this test plays."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import subprocess
from pathlib import Path

from agentbox.isolation.boxes import Box
from agentbox.isolation.channel import Channel
from agentbox.isolation.launcher import wire
from agentbox.isolation.plan import LaunchPlan, unisolated_plan
from agentbox.models import Confinement, Limits

LIMITS = Limits(timeout_seconds=30, memory_mb=256, cpus=1.0, pids=64, disk_mb=128, max_output_bytes=1 << 20)
WITHOUT_NAMESPACES: LaunchPlan = unisolated_plan(
    Confinement(LIMITS), workspace="/work", host_uid=0, host_gid=0, memory_held_by_cgroup=True
)
# Shorter than any patience of the box itself, so that waiting for an answer that cannot come is seen.
PATIENCE_SECONDS = 10


def test_a_box_whose_init_speaks_before_it_was_announced_can_still_be_killed(tmp_path: Path) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        box = Box(Channel(ours), dataclasses.replace(WITHOUT_NAMESPACES, namespaces=True))
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as init, theirs:
            pidfd, workspace = os.pidfd_open(init.pid), os.open(tmp_path, os.O_RDONLY)
            building = asyncio.create_task(box.built())
            wire.send(theirs, {"ready": True}, [workspace])
            while box.workspace_fd < 0:
                await asyncio.sleep(0)
            assert not building.done()
            wire.send(theirs, {"forked": init.pid}, [pidfd])
            await building
            await box.kill_programs()
            assert init.wait() == -9
            theirs.close()
            await box.destroy()
        os.close(pidfd)
        os.close(workspace)

    asyncio.run(main())


def test_a_box_without_namespaces_that_was_given_up_while_it_was_built_is_destroyed_without_waiting() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        box = Box(Channel(ours), WITHOUT_NAMESPACES)
        with theirs:
            building = asyncio.create_task(box.built())
            await asyncio.sleep(0)
            building.cancel()
            await asyncio.gather(building, return_exceptions=True)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await box.destroy()
            assert theirs.recv(1) == b""

    asyncio.run(main())
