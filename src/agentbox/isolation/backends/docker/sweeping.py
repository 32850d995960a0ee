# SPDX-License-Identifier: MIT
"""What dead owners left in the engine: containers that carry our label."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os

from agentbox.errors import AgentboxError
from agentbox.isolation.backends.docker.durable_ground import PREFIX
from agentbox.isolation.backends.docker.engine import Engine
from agentbox.isolation.backends.docker.ground import SOURCE
from agentbox.isolation.backends.docker.spec import LABEL_KEEPER, LABEL_KIND, LABEL_OWNER
from agentbox.linux import mounts, namespaces
from agentbox.linux.cgroup_owners import is_dead

# The kind of containers that outlive their owner.
KEPT = "kept"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def sweep_mounts(daemon: int) -> None:
    """Take away the file systems of boxes whose owner is dead, where the daemon sees them. Never raises."""

    def work() -> None:
        for point in points:
            with contextlib.suppress(OSError):
                mounts.detach(point)
            if os.path.basename(os.path.dirname(point)).startswith(PREFIX):
                with contextlib.suppress(OSError):
                    os.rmdir(point)
                    os.rmdir(os.path.dirname(point))

    with contextlib.suppress(OSError):
        points = [
            point
            for point in mounts.below("/", str(daemon), source=SOURCE)
            if any(is_dead(part) for part in point.split("/"))
        ]
        if points:
            namespaces.with_mounts_of(daemon, work)


async def orphans(engine: Engine, kinds: tuple[str, ...]) -> list[dict[str, Any]]:
    """The containers of those kinds whose owner is dead, as the engine lists them. Raises IsolationError."""
    query = {"all": "1", "filters": json.dumps({"label": [LABEL_OWNER]})}
    listed: list[dict[str, Any]] = await engine.call("GET", "/containers/json", query)
    return [
        container
        for container in listed
        if container["Labels"].get(LABEL_KIND) in kinds and is_dead(container["Labels"][LABEL_OWNER])
    ]


async def abandoned(engine: Engine) -> list[dict[str, Any]]:
    """The containers that were kept for a keeper whose state directory is gone. Raises IsolationError."""
    found = await orphans(engine, (KEPT,))
    there = await asyncio.to_thread(lambda: [os.path.isdir(one["Labels"].get(LABEL_KEEPER, "")) for one in found])
    return [one for one, is_there in zip(found, there, strict=True) if not is_there]


async def sweep(engine: Engine, kinds: tuple[str, ...] = ("run", "look", "net")) -> int:
    """Remove them; returns how many there were. Raises IsolationError when the engine cannot be asked."""
    found = await orphans(engine, kinds)

    async def remove(container: dict[str, Any]) -> None:
        with contextlib.suppress(AgentboxError):
            await engine.call("DELETE", f"/containers/{container['Id']}", {"force": "1", "v": "1"})

    await asyncio.gather(*map(remove, found))
    return len(found)
