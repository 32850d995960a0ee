# SPDX-License-Identifier: MIT
"""What sandboxes of dead processes left on this host: found, told, removed."""

from __future__ import annotations

import asyncio

from agentbox.config import Settings
from agentbox.errors import AgentboxError
from agentbox.isolation.durable import Leftover
from agentbox.isolation.durable_registry import DURABLE
from agentbox.records import dataclass
from agentbox.sandbox.grounds import standing
from agentbox.sandbox.state import Remnant, SandboxDirectories
from agentbox.workspace.volumes import close_volumes, open_volumes


@dataclass(frozen=True, slots=True)
class Collected:
    """One thing that was left: what it is, and what went wrong when it was to be removed, empty where nothing did."""

    what: str
    problem: str = ""


async def collect(settings: Settings, *, remove: bool) -> list[Collected]:
    """Everything that dead owners left, of every backend that can be asked; removed, or only told. Kept workspaces are
    neither. Raises IsolationError where this host cannot even be asked."""
    directories = SandboxDirectories(settings.resolved_state_dir())
    found = []
    async with standing(settings) as facilities:
        seen: set[str] = set()
        for make in DURABLE.values():
            for leftover in await make(facilities).leftovers():
                if leftover.what not in seen:
                    seen.add(leftover.what)
                    found.append(Collected(leftover.what, await _remove(leftover) if remove else ""))
    remnants = await asyncio.to_thread(_sweep, settings, directories) if remove else directories.remnants()
    return found + [
        Collected(f"directory of sandbox {remnant.name} ({remnant.backend}), started {remnant.started}")
        for remnant in remnants
    ]


def _sweep(settings: Settings, directories: SandboxDirectories) -> list[Remnant]:
    state = settings.resolved_state_dir()
    if not (state / "volumes").is_dir():
        return directories.sweep()
    directories.volumes = open_volumes(state, settings.workspace_volumes, settings.workspace_volumes_mb << 20)
    try:
        return directories.sweep()
    finally:
        close_volumes(state)


async def _remove(leftover: Leftover) -> str:
    try:
        await leftover.remove()
    except (AgentboxError, OSError) as error:
        return str(error)
    return ""
