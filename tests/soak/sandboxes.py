# SPDX-License-Identifier: MIT
"""Mixed commands in many sandboxes at once, of every backend, while boxes, gVisor's processes and containers are killed
at random: no workspace may lose anything, no answer may be wrong, nothing may be left on the host."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import sys
import time
from pathlib import Path

from agentbox import AsyncSandbox
from agentbox.errors import SandboxError, SandboxGoneError
from agentbox.linux import process
from tests.soak.acts import SPOOL_BYTES, WEIGHTS, LostError, Scene, WrongError, kill_inside
from tests.soak.killing import Killer
from tests.soak.ledger import Ledger
from tests.soak.remains import Remains, settled
from tests.soak.section import Found, Options

COMMANDS, BOXES, KILLS = 2000, 20, 60
# How long after a kill a box may still be found dead.
_EXCUSED_SECONDS = 30.0
_TRIES = 5
_TELL_SECONDS = 10.0


def work(options: Options, found: Found) -> None:
    """The section."""
    # What loses its parent stays ours, and is found.
    process.become_subreaper()
    state = Path(os.environ["AGENTBOX_STATE_DIR"])
    killer = Killer(random.Random(f"{options.seed} kills"), docker=any("docker" in one for one in options.backends))
    asyncio.run(_warm(options.backends))
    before = Remains.look(state)
    asyncio.run(_Soak(options, found, killer).run())
    for left in settled(lambda: Remains.look(state, killer.containers, killer.places), before):
        found.fault(f"left behind: {left}")
    if left := killer.look():
        found.fault(f"left behind: containers {left}")


async def _warm(backends: tuple[str, ...]) -> None:
    """What is loaded once is loaded, before it is counted."""
    for backend in backends:
        async with AsyncSandbox(backend=backend) as sandbox:
            await sandbox.exec("true", terminal=(10, 10))
            await sandbox.files.write("x", b"x")


class _Soak:
    def __init__(self, options: Options, found: Found, killer: Killer) -> None:
        self.options, self.found, self.killer = options, found, killer
        self.commands = options.of(COMMANDS)
        self.kills = options.of(KILLS)
        self.scenes: list[Scene] = []
        self.last_kill = float("-inf")
        self.told = time.monotonic()

    async def run(self) -> None:
        # A slice of it has enough boxes for each backend all the same.
        boxes = max(self.options.of(BOXES), min(2 * len(self.options.backends), BOXES))
        for number, backend in zip(range(boxes), itertools.cycle(self.options.backends), strict=False):
            root = self.options.place / f"{number}"
            root.mkdir()
            sandbox = AsyncSandbox(backend=backend, workspace=root, spool_bytes=SPOOL_BYTES, memory="512m")
            self.scenes.append(Scene(sandbox, Ledger(root), random.Random(f"{self.options.seed} {number}")))
        killing = asyncio.create_task(self._kill())
        try:
            await asyncio.gather(*(self._play(scene) for scene in self.scenes))
        finally:
            killing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await killing
            await asyncio.gather(*(scene.sandbox.stop() for scene in self.scenes))
        for scene in self.scenes:
            self._compare(scene, "in the end")
        self.found.counts["commands"] = self._done()

    def _done(self) -> int:
        return sum(scene.commands for scene in self.scenes)

    async def _kill(self) -> None:
        """Kill something again and again, as often as commands come."""
        for count in range(1, self.kills + 1):
            while self._done() < count * self.commands / (self.kills + 1):
                await asyncio.sleep(0.01)
            self.last_kill = time.monotonic()
            if what := await asyncio.to_thread(self.killer.kill):
                self.found.counts[f"times {what}"] += 1
            self.last_kill = time.monotonic()

    async def _play(self, scene: Scene) -> None:
        """All that is done in one sandbox."""
        await self._until_it_works(scene.sandbox.start, scene)
        acts, weights = list(WEIGHTS), list(WEIGHTS.values())
        share = self.commands / len(self.scenes)
        harmed = False
        while scene.commands < share:
            act = scene.chance.choices(acts, weights)[0]
            what = f"box {self.scenes.index(scene)} ({scene.sandbox.backend}): {act.__name__}"
            try:
                await act(scene)
            except (LostError, SandboxError) as error:
                gone = isinstance(error, SandboxGoneError)
                self.found.counts["boxes gone" if gone else "commands lost"] += 1
                if not harmed and not self._excused():
                    self.found.fault(f"{what}: nobody killed it: {error}")
                if not scene.sandbox.running:
                    await self._until_it_works(scene.sandbox.start, scene)
                elif gone or scene.chance.random() < 0.3:
                    await self._until_it_works(scene.sandbox.reset, scene)
                self._compare(scene, what)
            except Exception as error:
                self.found.fault(f"{what}: {type(error).__name__}: {error}")
                if not isinstance(error, WrongError):
                    await self._until_it_works(scene.sandbox.reset, scene)
            else:
                self.found.counts[act.__name__.replace("_", " ")] += 1
            harmed = act is kill_inside
            if harmed:
                self._compare(scene, what)
            self._tell()

    async def _until_it_works(self, way: object, scene: Scene) -> None:
        """Start or reset; a new box may be killed too."""
        for _ in range(_TRIES):
            try:
                await way()  # type: ignore[operator]
            except SandboxError as error:
                if not self._excused():
                    self.found.fault(f"box {self.scenes.index(scene)} ({scene.sandbox.backend}): no new box: {error}")
            else:
                return
        raise RuntimeError("no box can be made any more")

    def _excused(self) -> bool:
        return time.monotonic() - self.last_kill < _EXCUSED_SECONDS

    def _compare(self, scene: Scene, when: str) -> None:
        self.found.counts["workspaces compared"] += 1
        for fault in scene.ledger.faults():
            self.found.fault(f"workspace {self.scenes.index(scene)}, {when}: {fault}")

    def _tell(self) -> None:
        if time.monotonic() - self.told > _TELL_SECONDS:
            self.told = time.monotonic()
            print(f"  {self._done()} of {self.commands} commands", file=sys.stderr, flush=True)
