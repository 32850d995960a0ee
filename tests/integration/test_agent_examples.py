# SPDX-License-Identifier: MIT
"""The examples of `agentbox run` do their work, are held to their policy, and leave a trace that verifies."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.policy_run import Project, has_program

pytestmark = pytest.mark.linux
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "agent"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    shutil.copytree(EXAMPLE, tmp_path / "agent", ignore=shutil.ignore_patterns("out", ".agentbox", "trace.jsonl"))
    (tmp_path / "state").mkdir()
    return Project(tmp_path / "agent", tmp_path / "state")


def test_python_agent_works_and_is_held(project: Project) -> None:
    done = project.run("/usr/bin/python3", "summary.py", environment={"AGENT_NAME": "ada"})
    assert done.exit_code == 0, done
    assert "wrote 10 words" in done.text
    assert "hello ada" in done.text
    assert done.text.count("blocked: ") == 5
    assert "NOT BLOCKED" not in done.text
    assert (project.directory / "out" / "summary.txt").read_text().startswith("10 words")
    assert project.verdict()[0] == 0


def test_agent_with_the_functions_for_agents_is_replayed(project: Project) -> None:
    done = project.run("/usr/bin/python3", "report.py")
    assert done.exit_code == 0, done
    assert "hello agent: 10 words at " in done.text
    assert done.text.count("blocked: policy denies ") == 4
    assert "NOT BLOCKED" not in done.text
    replayed = subprocess.run(
        [*project.command, "replay"], cwd=project.directory, env=project.environ(), capture_output=True, check=False
    )
    assert replayed.returncode == 0, replayed
    assert done.text.splitlines()[:5] == replayed.stdout.decode().splitlines()[:5]


def test_node_agent_works_and_is_held(project: Project) -> None:
    if not has_program("node"):
        pytest.skip("there is no node")
    done = project.run("node", "summary.cjs")
    assert done.exit_code == 0, done
    assert "wrote 10 words" in done.text
    assert done.text.count("blocked: ") == 3
    assert "NOT BLOCKED" not in done.text
    assert project.verdict()[0] == 0
