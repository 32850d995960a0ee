# SPDX-License-Identifier: MIT
"""A backend for the self-check whose boxes come out of a warm pool, in each of its ways."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

from agentbox.egress.names import GATEWAY_IPV4
from agentbox.engine.way_out import Egress
from agentbox.isolation.backend import LiveBox, Program, Watch
from agentbox.isolation.backends.jail import JailBackend
from agentbox.isolation.boxes import CommandExit
from agentbox.isolation.facilities import Facilities
from agentbox.isolation.interpreters import Found
from agentbox.isolation.network import HeldNetwork, Network
from agentbox.isolation.plan import WORKSPACE
from agentbox.isolation.pool.pool import PooledLiveBox
from agentbox.isolation.pool.shape import PoolShape
from agentbox.light import asyncio
from agentbox.models import Confinement, Limits
from agentbox.workspace.placing import place_files
from agentbox.workspace.tree import Tree

OWNER = "checks"
WAYS = ("warm", "forked", "made")
_SCRIPT = f"{WORKSPACE}/main.py"
_ENVIRONMENT = {"LANG": "C.UTF-8"}
_WARM_SECONDS = 60.0
LIMITS = Limits(timeout_seconds=20, memory_mb=384, cpus=1.0, pids=24, disk_mb=8, max_output_bytes=1 << 16)


class PooledBackend:
    """The jail, whose pool gives every box in one `way`. What the self-check starts with `-I -c SCRIPT` is the box's
    main.py in a warm interpreter."""

    name = "jail"
    isolated = True
    needs_directory = False
    judges = True
    own_kernel = False

    def __init__(self, jail: JailBackend, python: Found, way: str) -> None:
        self.jail = jail
        self._python = python
        self._way = way
        self.requirements = jail.requirements
        self.claims: object = jail.claims
        self.refuses: object = jail.refuses
        self.interpreters: object = jail.interpreters

    @property
    def argv(self) -> tuple[str, ...]:
        """What a warm interpreter can become; a made box starts another program."""
        return (self._python.path, "-I" if self._way == "made" else _SCRIPT)

    async def launch(
        self, confinement: Confinement, directory: object = None, watch: object = None, network: object = None
    ) -> LiveBox:
        program = Program(OWNER, self.argv, _ENVIRONMENT)
        async with asyncio.timeout(_WARM_SECONDS):
            while True:
                box = await self.jail.launch(confinement, program=program)
                if box.start_kind == self._way:
                    break
                await box.destroy()
                await asyncio.sleep(0.05)
        assert isinstance(box, PooledLiveBox)
        return box if self._way == "made" else _AsMain(box)


class _AsMain:
    """A live box whose interpreter runs scripts as its main.py."""

    def __init__(self, box: PooledLiveBox) -> None:
        self._box = box

    def __getattr__(self, name: str) -> object:
        return getattr(self._box, name)

    async def start(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, stdio: Sequence[int]
    ) -> asyncio.Future[CommandExit]:
        path, _, _, script, *words = argv
        place_files(Tree(self._box.workspace_fd, *self._box.ids), {"main.py": script.encode()})
        return await self._box.start([path, _SCRIPT, *words], env, cwd, stdio)


class AttachedBackend(PooledBackend):
    """The same of boxes that wait with a way out, which `networks` are not needed for."""

    def __init__(self, jail: JailBackend, python: Found) -> None:
        super().__init__(jail, python, "warm")
        self._held: list[HeldNetwork] = []

    async def launch(
        self, confinement: Confinement, directory: object = None, watch: object = None, network: object = None
    ) -> LiveBox:
        program, seen = Program(OWNER, self.argv, _ENVIRONMENT), Watch((self._python.path, ()), lambda report: None)
        async with asyncio.timeout(_WARM_SECONDS):
            while (held := await self.jail.hold_network(confinement, seen, program)) is None or held.fitted is None:
                if held is not None:
                    await held.close()
                await asyncio.sleep(0.05)
        self._held.append(held)
        joined = Network(-1, None, GATEWAY_IPV4, holder=held.holder)
        box = await self.jail.launch(confinement, None, seen, joined, program)
        assert isinstance(box, PooledLiveBox)
        return _AsMain(box)

    async def close(self) -> None:
        """Give up the networks of boxes that are gone."""
        for held in self._held:
            await held.close()


@contextlib.asynccontextmanager
async def no_network() -> AsyncIterator[Network]:
    """What the self-check hands to a backend whose boxes have networks already."""
    yield Network(-1, None, GATEWAY_IPV4)


@contextlib.asynccontextmanager
async def attached_backend(python: Found) -> AsyncIterator[AttachedBackend]:
    """As `pooled_backend`, of boxes with a way out."""
    egress = Egress()
    async with pooled_backend(python, "warm") as pooled:
        program = Program(OWNER, pooled.argv, _ENVIRONMENT)
        shape = PoolShape(size=2, owners=2, modules=(), runs=1000, seconds=600)
        confinement = Confinement(LIMITS, python.directories)
        pooled.jail.offer_watched(shape, confinement, program, way_out=egress, now=True)
        attached = AttachedBackend(pooled.jail, python)
        try:
            yield attached
        finally:
            await attached.close()
    await egress.close()


@contextlib.asynccontextmanager
async def pooled_backend(python: Found, way: str) -> AsyncIterator[PooledBackend]:
    """Such a backend on facilities of its own. Raises AssertionError where no pool can be had."""
    facilities = await Facilities.open()
    jail = JailBackend(facilities)
    try:
        shape = PoolShape(size=2 if way == "warm" else 0, owners=2, modules=(), runs=1000, seconds=600)
        program = Program(OWNER, (python.path, _SCRIPT), _ENVIRONMENT)
        lacks = await jail.open_pool(shape, (Confinement(LIMITS, python.directories), program))
        assert lacks == ""
        yield PooledBackend(jail, python, way)
    finally:
        await jail.close()
        await facilities.close()
