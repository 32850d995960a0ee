# SPDX-License-Identifier: MIT
"""`kill -9` of the runner or of the agent at random moments: nothing is left, and the verdict is true."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
from pathlib import Path

import pytest

from tests.adversarial.host_state import descendants, until
from tests.policy_run import AGENTBOX, Project

pytestmark = pytest.mark.linux
_MARK = "killed-at-any-moment"
_CODE = (
    "import os, subprocess, time\n"
    "for n in range(100000):\n"
    f"    subprocess.run(['echo', '{_MARK}'], stdout=subprocess.DEVNULL)\n"
    "    if n == 0: print('ready', flush=True)\n"
)


def _alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}").exists() and b"Z" not in _state(pid)}


def _state(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return b"Z"


@pytest.mark.parametrize("seed", range(6))
def test_killed_runner_leaves_no_process_and_a_trace_without_end(project: Project, seed: int) -> None:
    wait = random.Random(seed).uniform(0, 1.5)
    with subprocess.Popen(
        [*AGENTBOX, "run", "-q", "--", "/usr/bin/python3", "-I", "-c", _CODE],
        cwd=project.directory,
        env=project.environ(),
        stdout=subprocess.PIPE,
    ) as running:
        family = set(descendants(running.pid))
        assert running.stdout is not None
        # A moment, not a condition: any state of the run will do.
        select.select([], [], [], wait)
        family |= set(descendants(running.pid))
        running.kill()
        running.wait()
    until(lambda: not _alive(family), "something of the run is left")
    for trace in project.traces():
        code, said = project.verdict(trace)
        assert code == 5, said


def test_killed_runner_in_the_middle_of_a_command_is_unsealed(project: Project) -> None:
    with subprocess.Popen(
        [*AGENTBOX, "run", "-q", "--", "/usr/bin/python3", "-I", "-c", _CODE],
        cwd=project.directory,
        env=project.environ(),
        stdout=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        family = set(descendants(running.pid))
        assert len(family) >= 3
        running.kill()
    until(lambda: not _alive(family), "something of the run is left")
    code, said = project.verdict()
    assert code == 5
    assert "unsealed" in said or "no end" in said or "torn" in said, said
    assert project.run("true").exit_code == 0
    assert project.verdict()[0] == 0


@pytest.mark.parametrize("seed", range(4))
def test_killed_agent_is_137_and_its_trace_is_whole(project: Project, seed: int) -> None:
    with subprocess.Popen(
        [*AGENTBOX, "run", "-q", "--", "/usr/bin/python3", "-I", "-c", _CODE],
        cwd=project.directory,
        env=project.environ(),
        stdout=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        select.select([], [], [], random.Random(seed).uniform(0, 0.3))
        (agent,) = [pid for pid in descendants(running.pid) if _MARK in _words(pid) and "import os" in _words(pid)]
        os.kill(agent, signal.SIGKILL)
        assert running.wait(60) == 137
    assert project.verdict()[0] == 0


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""
