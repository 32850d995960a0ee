# SPDX-License-Identifier: MIT
"""What all backends of one process share: its launcher, its place for control groups, its box ids."""

from __future__ import annotations

from agentbox.isolation import host
from agentbox.isolation.boxes import Launcher
from agentbox.light import asyncio
from agentbox.linux.cgroups import CgroupTree
from agentbox.records import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agentbox.isolation.plan import HostView
    from agentbox.linux.cgroups import Cgroup


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """The engine whose containers are boxes, at `unix:///path`, and what they are made of; an empty image means the
    first of the usual ones that the engine has."""

    host: str = "unix:///var/run/docker.sock"
    image: str = ""
    node_image: str = ""
    runtime: str = "runc"


@dataclass(frozen=True, slots=True)
class GvisorOptions:
    """How many boxes wait, the directory of images (empty: there are none), and the image of runs (empty: the host's
    programs)."""

    pool_size: int = 1
    images: str = ""
    image: str = ""


@dataclass(slots=True)
class Facilities:
    """Opened once per owning process, before any backend; `held` are the controllers that work on this host. `begun` is
    the control group that a box which was only announced joins, `begun_ids` its ids; see early.py."""

    launcher: Launcher = field(default_factory=Launcher)
    ids: host.BoxIds = field(default_factory=host.BoxIds)
    cgroups: CgroupTree | None = None
    begun: Cgroup | None = None
    begun_ids: tuple[int, int] | None = None
    seen: HostView | None = None
    gvisor: GvisorOptions = GvisorOptions()
    closing: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    docker: DockerOptions = DockerOptions()

    @classmethod
    async def open(cls) -> Facilities:
        """Also removes control groups, and kills what lives in them, whose owner is dead."""
        await asyncio.to_thread(CgroupTree.sweep)
        return cls(cgroups=await asyncio.to_thread(CgroupTree.open))

    @property
    def held(self) -> frozenset[str]:
        """Those of memory, pids and cpu that a control group holds here."""
        return self.cgroups.controllers if self.cgroups else frozenset()

    def take_ids(self) -> tuple[int, int]:
        """uid and gid of a new box, to be given back to `ids`."""
        taken, self.begun_ids = self.begun_ids, None
        return taken or self.ids.take()

    def host_view(self) -> HostView:
        """The host's layout as far as boxes see it, looked at once."""
        if self.seen is None:
            self.seen = host.view()
        return self.seen

    async def close(self) -> None:
        """Do what was left for the end (`closing`), end the launcher and give the control groups back. Boxes must have
        been destroyed."""
        while self.closing:
            await self.closing.pop()()
        await self.launcher.close()
        if self.cgroups is not None:
            await asyncio.to_thread(self.cgroups.close)
            self.cgroups = None

    def drop(self) -> None:
        """As `close`, without an event loop. May be called twice."""
        self.launcher.drop()
        if self.begun is not None:
            self.begun.destroy()
            self.begun = None
        if self.cgroups is not None:
            self.cgroups.close()
            self.cgroups = None
