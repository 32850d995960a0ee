# SPDX-License-Identifier: MIT
"""A watched box in which a layer is missing, or goes: nothing of the guest runs without it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agentbox.engine.guarding import CHANNEL, POLICY, Guards, guarded_environment
from agentbox.engine.readings import Readings
from agentbox.engine.run_policy import decide_policy
from agentbox.engine.supervisor import Ending, supervise
from agentbox.engine.walk import base_environment
from agentbox.errors import ConfinementError, IsolationError
from agentbox.guest.injection import GUARD_DIR, policy_file
from agentbox.isolation.backend import Program, Watch
from agentbox.isolation.backends.jail import JailBackend
from agentbox.isolation.facilities import Facilities
from agentbox.isolation.interpreters import Found, by_language, locate
from agentbox.isolation.plan import WORKSPACE, GuardView, WorkspaceView
from agentbox.isolation.pool.nursery import GuardFiles
from agentbox.isolation.pool.pool import PooledLiveBox
from agentbox.isolation.pool.shape import PoolShape
from agentbox.isolation.pool.watched import WatchedBox
from agentbox.light import asyncio
from agentbox.models import Confinement, Limits, Outcome
from agentbox.workspace.placing import place_files
from agentbox.workspace.tree import Tree
from tests.adversarial.host_state import until

pytestmark = [pytest.mark.linux, pytest.mark.root]

LIMITS = Limits(timeout_seconds=20, memory_mb=128, cpus=1.0, pids=32, disk_mb=8, max_output_bytes=1 << 16)
_OWNER = "fails closed"
_WARM_SECONDS = 60.0
# Below the guard, which would wait for a host that records: these tests have none.
_STARTS = "import ctypes\nprint('on', flush=True)\nctypes.CDLL(None).system(b'/bin/echo started')\nprint('off')"


class Boxes:
    """Watched boxes of one jail, under one policy."""

    def __init__(self, jail: JailBackend, found: Found, guard: GuardView) -> None:
        self.jail = jail
        self._found = found
        self._guard = guard
        entry = f"{WORKSPACE}/main.py"
        self.argv = tuple(by_language("python").argv(found.path, entry, LIMITS.memory_mb))
        self.plain = base_environment(found)
        self.env = guarded_environment(self.plain, kind="python", root=WORKSPACE, entry=entry)
        policy = decide_policy("read: .\nexec: sh, echo", None, "python", found, LIMITS, {}, Readings(), _OWNER)
        assert policy is not None
        self.policy = policy
        self.reports: list[dict[str, Any]] = []

    def view(self, *, policy: str | None = None, shown: tuple[tuple[str, bool], ...] = ()) -> WorkspaceView:
        """What a box shows: its workspace for reading, and what else is said."""
        text = policy_file(self.policy.policy) if policy is None else policy
        return WorkspaceView(((WORKSPACE, False), *shown), files=((POLICY, text),))

    async def take(self, code: str) -> tuple[PooledLiveBox, WatchedBox]:
        """A warm box with that program. Raises TimeoutError when there is none."""
        watch = Watch((os.path.realpath(self._found.path), self.argv[1:]), self.reports.append, self._guard)
        program = Program(_OWNER, self.argv, self.env)
        async with asyncio.timeout(_WARM_SECONDS):
            while True:
                box = await self.jail.launch(self.policy.confinement, None, watch, None, program)
                if box.start_kind == "warm":
                    break
                await box.destroy()
                await asyncio.sleep(0.1)
        assert isinstance(box, PooledLiveBox)
        assert isinstance(box.pooled, WatchedBox)
        place_files(Tree(box.workspace_fd, *box.ids), {"main.py": code.encode()})
        return box, box.pooled

    async def run(self, box: PooledLiveBox, limits: Limits = LIMITS) -> Ending:
        """Start the program and see to its end."""
        try:
            return await supervise(box, self.argv, self.env, stdin=b"", limits=limits, max_total_output_bytes=1 << 20)
        finally:
            await box.destroy()


def judge_of(box: WatchedBox) -> int:
    """The process that judges a box: it sees the files that the box's program sees."""
    inside = os.readlink(f"/proc/{box.child_pid}/ns/mnt")
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if _is_judge(name) and os.readlink(f"/proc/{name}/ns/mnt") == inside:
                return int(name)
    raise AssertionError("the box has no judge")


@contextlib.asynccontextmanager
async def watched_boxes(state: Path) -> AsyncIterator[Boxes]:
    facilities = await Facilities.open()
    jail = JailBackend(facilities)
    found = locate(by_language("python"), "")
    assert found is not None
    directory = str(Guards(state).directory(found.path))
    boxes = Boxes(jail, found, GuardView(directory, GUARD_DIR, CHANNEL))
    shape = PoolShape(2, 2, (), 100, 600.0)
    confinement = Confinement(LIMITS, found.directories)
    try:
        assert await jail.open_pool(shape, (confinement, Program(_OWNER, boxes.argv, boxes.plain))) == ""

        async def files() -> GuardFiles:
            return GuardFiles(directory, GUARD_DIR, CHANNEL, POLICY, policy_file(boxes.policy.policy))

        guarded = Program(_OWNER, boxes.argv, boxes.env, started_with=boxes.plain)
        jail.offer_watched(shape, confinement, guarded, files, now=True)
        yield boxes
    finally:
        await jail.close()
        await facilities.close()


def in_boxes(state: Path, work: Callable[[Boxes], Awaitable[None]]) -> None:
    async def go() -> None:
        async with watched_boxes(state) as boxes:
            await work(boxes)

    asyncio.run(go())


def test_a_box_with_every_layer_runs_its_program(tmp_path: Path) -> None:
    async def work(boxes: Boxes) -> None:
        box, pooled = await boxes.take(_STARTS)
        await box.show(boxes.view())
        ending = await supervise(box, boxes.argv, boxes.env, stdin=b"", limits=LIMITS, max_total_output_bytes=1 << 20)
        await box.judged()
        assert ending.stdout.data.decode() == "on\nstarted\noff\n"
        programs = [report["spawn"]["exe"] for report in boxes.reports if "spawn" in report]
        assert programs == [os.path.realpath(path) for path in (boxes.argv[0], "/bin/sh", "/bin/echo")]
        assert boxes.reports[0]["spawn"]["pid"] == pooled.child_pid
        await box.destroy()

    in_boxes(tmp_path, work)


@pytest.mark.parametrize("policy", ["{", '{"format": "another"}', "rubbish: here"])
def test_a_guard_that_cannot_arm_ends_the_run_before_the_program(tmp_path: Path, policy: str) -> None:
    async def work(boxes: Boxes) -> None:
        box, _ = await boxes.take("print('ran')")
        await box.show(boxes.view(policy=policy))
        ending = await boxes.run(box)
        assert ending.exit_code == 70
        assert ending.stdout.data.decode() == ""
        assert "refusing to run" in ending.stderr.data.decode()

    in_boxes(tmp_path, work)


def test_a_view_that_cannot_be_shown_ends_the_run_before_the_program(tmp_path: Path) -> None:
    async def work(boxes: Boxes) -> None:
        box, _ = await boxes.take("print('ran')")
        await box.show(boxes.view(shown=((f"{WORKSPACE}/is-not-there", True),)))
        with pytest.raises(ConfinementError, match="show workspace"):
            await boxes.run(box)

    in_boxes(tmp_path, work)


def test_a_box_that_was_not_told_what_to_show_runs_nothing(tmp_path: Path) -> None:
    async def work(boxes: Boxes) -> None:
        box, _ = await boxes.take("print('ran')")
        with pytest.raises(IsolationError, match="does not show"):
            await boxes.run(box)

    in_boxes(tmp_path, work)


def test_a_judge_that_ends_takes_its_box_along(tmp_path: Path) -> None:
    async def work(boxes: Boxes) -> None:
        code = _STARTS.replace("ctypes.", "__import__('time').sleep(60); ctypes.", 1)
        box, pooled = await boxes.take(code)
        await box.show(boxes.view())
        judge = judge_of(pooled)
        asyncio.get_running_loop().call_later(0.3, os.kill, judge, signal.SIGKILL)
        begun = time.monotonic()
        ending = await boxes.run(box)
        assert time.monotonic() - begun < 30
        assert ending.exit_code == 137
        assert "started" not in ending.stdout.data.decode()

    in_boxes(tmp_path, work)


def test_a_program_that_the_judge_does_not_look_at_never_starts(tmp_path: Path) -> None:
    async def work(boxes: Boxes) -> None:
        box, pooled = await boxes.take(_STARTS)
        await box.show(boxes.view())
        judge = judge_of(pooled)
        os.kill(judge, signal.SIGSTOP)
        short = Limits(**{**_as_dict(LIMITS), "timeout_seconds": 2})
        ending = await boxes.run(box, short)
        assert (ending.outcome, ending.stdout.data.decode()) == (Outcome.TIMED_OUT, "on\n")
        stopped.append(judge)

    stopped: list[int] = []
    in_boxes(tmp_path, work)
    # Nor does it outlive its owner.
    until(lambda: not Path(f"/proc/{stopped[0]}").exists(), "a judge that was stopped is still there")


def test_a_box_whose_judge_is_gone_is_given_to_no_run(tmp_path: Path) -> None:
    async def work(boxes: Boxes) -> None:
        box, pooled = await boxes.take(_STARTS)
        await box.show(boxes.view())
        os.kill(judge_of(pooled), signal.SIGKILL)
        async with asyncio.timeout(20):
            while pooled.fresh:
                await asyncio.sleep(0.01)
        with pytest.raises(IsolationError, match="cannot be used"):
            await boxes.run(box)
        box, _ = await boxes.take(_STARTS)
        await box.show(boxes.view())
        assert (await boxes.run(box)).stdout.data.decode() == "on\nstarted\noff\n"

    in_boxes(tmp_path, work)


def test_a_guard_whose_channel_is_closed_refuses_what_must_be_recorded(tmp_path: Path) -> None:
    async def work(boxes: Boxes) -> None:
        code = "import subprocess\ntry: subprocess.run(['echo', 'started'])\nexcept OSError as error: print(error)"
        box, pooled = await boxes.take(code)
        await box.show(boxes.view())
        assert pooled.channel is not None
        pooled.channel.close()
        ending = await boxes.run(box)
        assert "started" not in ending.stdout.data.decode()
        assert "the host cannot record it" in ending.stdout.data.decode()

    in_boxes(tmp_path, work)


def test_judges_that_are_killed_come_again(tmp_path: Path) -> None:
    async def work(boxes: Boxes) -> None:
        box, pooled = await boxes.take(_STARTS)
        server = int(_status(judge_of(pooled), "PPid"))
        await box.destroy()
        os.kill(server, signal.SIGKILL)
        async with asyncio.timeout(_WARM_SECONDS):
            while True:
                box, _ = await boxes.take(_STARTS)
                await box.show(boxes.view())
                # A box that was made before may be taken a moment before its end is seen.
                with contextlib.suppress(IsolationError):
                    said = (await boxes.run(box)).stdout.data.decode()
                    if said == "on\nstarted\noff\n":
                        break
                    assert "started" not in said

    in_boxes(tmp_path, work)


def _is_judge(pid: str) -> bool:
    return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"agentbox-judge")


def _as_dict(limits: Limits) -> dict[str, Any]:
    return {name: getattr(limits, name) for name in Limits.__dataclass_fields__}


def _status(pid: int, name: str) -> str:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.split(":", 1)[1].strip()
    return ""
