# SPDX-License-Identifier: MIT
"""What all sandboxes of one event loop share: the launcher, the control groups, the way out; opened with the first of
them, closed with the last."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncIterator

from agentbox.config import Settings
from agentbox.engine.runner import furnish
from agentbox.engine.way_out import Egress
from agentbox.isolation.facilities import Facilities
from agentbox.linux.cgroups import CgroupTree


class _Groups:
    """The control groups of this process, which loops share: the kernel knows one owner."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._tree: CgroupTree | None = None

    def take(self) -> CgroupTree | None:
        """The tree, None where this host has no control groups."""
        with self._lock:
            if not self._users:
                CgroupTree.sweep()
                self._tree = CgroupTree.open()
            self._users += 1
            return self._tree

    def give_back(self) -> None:
        """The last of those who took it closes it."""
        with self._lock:
            self._users -= 1
            if not self._users and self._tree is not None:
                self._tree.close()
                self._tree = None


_GROUPS = _Groups()


class Grounds:
    """One per event loop; see `standing`."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._users = 0
        self._facilities: Facilities | None = None
        self._egress: Egress | None = None

    async def enter(self, settings: Settings) -> Facilities:
        """One sandbox more; the settings of the first hold for all. Raises IsolationError, OSError."""
        async with self._lock:
            if self._facilities is None:
                facilities = Facilities(cgroups=await asyncio.to_thread(_GROUPS.take))
                furnish(facilities, settings)
                self._facilities = facilities
            self._users += 1
            return self._facilities

    def egress(self, settings: Settings) -> Egress:
        """What makes ways out."""
        if self._egress is None:
            self._egress = Egress(settings.dns_upstream)
        return self._egress

    async def leave(self) -> None:
        """One sandbox less, which is destroyed by now."""
        async with self._lock:
            self._users -= 1
            if self._users:
                return
            egress, self._egress = self._egress, None
            facilities, self._facilities = self._facilities, None
            if egress is not None:
                await egress.close()
            if facilities is not None:
                facilities.cgroups = None
                try:
                    await facilities.close()
                finally:
                    await asyncio.to_thread(_GROUPS.give_back)


_GROUNDS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Grounds] = weakref.WeakKeyDictionary()


def grounds() -> Grounds:
    """Those of the running loop."""
    loop = asyncio.get_running_loop()
    found = _GROUNDS.get(loop)
    if found is None:
        found = _GROUNDS[loop] = Grounds()
    return found


@contextlib.asynccontextmanager
async def standing(settings: Settings) -> AsyncIterator[Facilities]:
    """The facilities, for as long as the block runs."""
    shared = grounds()
    facilities = await shared.enter(settings)
    try:
        yield facilities
    finally:
        await shared.leave()
