# SPDX-License-Identifier: MIT
"""What the processes of a run hold of the runner that they are forks of."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

import pytest

from tests.conftest import not_here
from tests.policy_run import Project

pytestmark = [pytest.mark.linux, pytest.mark.root]


def _family(pid: int) -> list[int]:
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
            found += [int(child), *_family(int(child))]
    return found


def _holds(pid: int, secret: bytes) -> bool:
    """Whether the secret is anywhere in the writable memory of a process."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            if rights[1] != "w":
                continue
            start, end = (int(one, 16) for one in span.split("-"))
            try:
                memory.seek(start)
                if secret in memory.read(end - start):
                    return True
            except (OSError, OverflowError, ValueError):
                continue
    return False


@pytest.fixture
def project(tmp_path: Path) -> Project:
    directory = tmp_path / "project"
    directory.mkdir()
    made = Project(directory, tmp_path / "state")
    made.policy("# nothing")
    return made


def test_no_process_of_a_box_holds_the_caller_s_environment(project: Project) -> None:
    if os.geteuid() != 0:
        not_here("only root can look into a box's processes")
    secret = secrets.token_hex(16)
    running = subprocess.Popen(
        [*project.command, "run", "-q", "--", "/bin/sh", "-c", "echo ready; read line"],
        cwd=project.directory,
        env=project.environ({"SECRET_TOKEN": secret}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert running.stdin is not None
    assert running.stdout is not None
    try:
        assert running.stdout.readline() == b"ready\n"
        family = _family(running.pid)
        assert _holds(running.pid, secret.encode())
        assert len(family) >= 3
        assert [pid for pid in family if _holds(pid, secret.encode())] == []
    finally:
        running.stdin.close()
        assert running.wait(timeout=60) == 1
        running.stdout.close()
