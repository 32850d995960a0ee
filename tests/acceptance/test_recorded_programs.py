# SPDX-License-Identifier: MIT
"""Ordinary programs, recorded and replayed: clocks, chance, files, other programs, threads, tasks, an agent's own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.policy_run import Project, new_project

pytestmark = pytest.mark.linux

PROGRAMS = sorted((Path(__file__).parent / "recorded").glob("*.py"))
POLICY = (
    "read: ./data",
    "write: ./out",
    "exec: echo, cat, sh, sort, printf, sleep, true, false",
)
SALES = "city,amount\n" + "".join(f"{city},{n * 1.25}\n" for n in range(1, 9) for city in ("Bonn", "Graz", "Lyon"))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = new_project(tmp_path)
    made.policy(*POLICY)
    made.file("data/notes.txt", "the quick brown fox\njumps over\nthe lazy dog\n")
    made.file("data/sales.csv", SALES)
    (made.directory / "data" / "picture.bin").write_bytes(b"\x89PNG\xff\xfe")
    (made.directory / "out").mkdir()
    return made


def _replayed(project: Project, *command: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*project.command, "replay", "--", *command],
        cwd=project.directory,
        env=project.environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_an_ordinary_program_replays_as_it_was_recorded(project: Project, program: Path) -> None:
    shutil.copy(program, project.directory / program.name)
    command = ("/usr/bin/python3", program.name)
    recorded = project.run(*command)
    expected = {"alarms": 3, "failure": 1}.get(program.stem, 0)
    assert recorded.exit_code == expected, recorded
    assert "Traceback" not in recorded.stderr or program.stem in ("journal", "failure"), recorded
    shutil.rmtree(project.directory / "out")
    (project.directory / "out").mkdir()
    replayed = _replayed(project, *command)
    assert replayed.returncode == 0, replayed
    assert b"agentbox: replay ok" in replayed.stdout + replayed.stderr, replayed
    lines = [line for line in recorded.stdout.splitlines() if not line.startswith(b"agentbox: ")]
    assert lines == [line for line in replayed.stdout.splitlines() if not line.startswith(b"agentbox: ")]
    assert list((project.directory / "out").iterdir()) == [], "a replay wrote into the project"


def test_there_are_twenty_programs() -> None:
    assert len(PROGRAMS) >= 20
