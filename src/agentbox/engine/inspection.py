# SPDX-License-Identifier: MIT
"""Every backend examined on this host, for `agentbox doctor`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from agentbox.config import Settings
from agentbox.engine.directories import Directories
from agentbox.isolation import registry
from agentbox.isolation.facilities import Facilities
from agentbox.isolation.interpreters import INTERPRETERS, locate
from agentbox.isolation.selfcheck import Report, examine
from agentbox.linux.cgroups import CgroupTree


async def inspect_backends(settings: Settings) -> AsyncIterator[Report]:
    """A report for each backend, in the order of the registry, each as soon as its checks have run."""
    facilities = await Facilities.open()
    directories = Directories(settings.resolved_state_dir())
    try:
        await asyncio.to_thread(directories.open)

        @contextlib.asynccontextmanager
        async def directory() -> AsyncIterator[str]:
            box = await asyncio.to_thread(directories.make)
            try:
                yield str(box / "work")
            finally:
                await asyncio.to_thread(directories.remove, box)

        python = await asyncio.to_thread(locate, INTERPRETERS["python"], settings.python)
        for name in registry.BACKENDS:
            yield await examine(registry.make(name, facilities), python, directory)
    finally:
        await facilities.close()
        await asyncio.to_thread(directories.close)


def explain_limits() -> str:
    """For people: which limits control groups hold here, why others are not held, and how to get them."""
    return CgroupTree.explain()
