# SPDX-License-Identifier: MIT
"""A slice of the soak: `make soak` does all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.docker_engine import TestEngine

# Of all that `make soak` does.
SIZE = 0.06
BACKENDS = ("jail", "gvisor", "docker-runc", "docker-runsc")


def _soak(path: Path, *words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    # In a process of its own, whose children and open files are counted.
    return subprocess.run(
        [sys.executable, "-m", "tests.soak", "--json", str(path), *words],
        cwd=REPOSITORY,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="not on this host: gVisor and containers need root")
def test_sandboxes_killed_at_random_lose_no_work_and_leave_nothing(tmp_path: Path, docker_engine: TestEngine) -> None:
    done = _soak(
        tmp_path / "found.json", "--seed", "1", "--size", str(SIZE), "sandboxes", environment=docker_engine.environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["backends"] == list(BACKENDS)
    counts = found["sections"][0]["counts"]
    assert counts["commands"] >= 100
    assert counts["workspaces compared"] >= 8
