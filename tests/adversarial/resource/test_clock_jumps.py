# SPDX-License-Identifier: MIT
"""The wall clock may jump (a time server's step, a suspended machine); deadlines and durations must not notice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from agentbox.config import load
from agentbox.engine.runner import Runner
from agentbox.models import Outcome, RequestedLimits, RunRequest

DAY_SECONDS = 86400.0


@pytest.mark.parametrize("jump", [DAY_SECONDS, -DAY_SECONDS], ids=["forward", "back"])
async def test_a_jump_of_the_wall_clock_moves_no_deadline(
    jump: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _ = load({"AGENTBOX_STATE_DIR": str(tmp_path)}, tmp_path / "no.env")
    runner = await Runner.start(settings)
    real = time.time

    async def on_output(_stream: str, _chunk: bytes) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + jump)

    try:
        sleeper = RunRequest("print('begun'); import time; time.sleep(60)", limits=RequestedLimits(timeout_seconds=2))
        ended = await runner.run(sleeper, on_output)
        monkeypatch.setattr(time, "time", real)
        quick = await runner.run(RunRequest("print('begun')", limits=RequestedLimits(timeout_seconds=20)), on_output)
    finally:
        monkeypatch.undo()
        await runner.close()
    assert ended.outcome is Outcome.TIMED_OUT
    assert ended.stdout.data == b"begun\n"
    assert 2000 <= ended.duration_ms < 60_000
    assert quick.outcome is Outcome.EXITED
    assert 0 <= quick.duration_ms < 20_000
