# SPDX-License-Identifier: MIT
"""What `make` looks for before it starts, and what it says when that is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.render import REPOSITORY

REAL_TOOLS = ("bash", "env", "id", "cat")


def run(*argv: str, cwd: Path = REPOSITORY, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    if path is not None:
        environment["PATH"] = path
    return subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A directory for PATH with a shell and nothing else."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in REAL_TOOLS:
        found = shutil.which(name)
        assert found
        (directory / name).symlink_to(found)
    return directory


def put(directory: Path, name: str, script: str) -> None:
    program = directory / name
    program.write_text(f"#!/usr/bin/env bash\n{script}\n")
    program.chmod(0o755)


def test_make_alone_lists_the_targets() -> None:
    done = run("make", "-s")
    assert done.returncode == 0, done.stderr
    listed = {line.split()[1] for line in done.stdout.splitlines()}
    assert {"serve", "test", "check", "bench", "clean", "help"} <= listed


def test_python_that_is_new_enough_is_found(tools: Path) -> None:
    (tools / "python3").symlink_to(sys.executable)
    done = run("bash", "requirements/find-python", path=str(tools))
    assert (done.returncode, done.stdout) == (0, "python3\n"), done.stderr


def test_shim_without_its_python_is_passed_over(tools: Path) -> None:
    put(tools, "python3.13", "echo 'python3.13: command not found' >&2; exit 127")
    (tools / "python3").symlink_to(sys.executable)
    assert run("bash", "requirements/find-python", path=str(tools)).stdout == "python3\n"


def test_missing_python_names_the_package(tools: Path) -> None:
    done = run("bash", "requirements/find-python", path=str(tools))
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed" in done.stderr
    assert "apt-get install python3 python3-venv" in done.stderr


def test_python_that_is_too_old_is_not_taken(tools: Path) -> None:
    put(tools, "python3", "echo 3.9; exit 1")
    done = run("bash", "requirements/find-python", path=str(tools))
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed" in done.stderr


def test_python_without_venv_names_the_package(tools: Path) -> None:
    put(tools, "python3", 'case "$2" in *version_info*) echo 3.11 ;; *) exit 1 ;; esac')
    done = run("bash", "requirements/find-python", path=str(tools))
    assert done.returncode == 1
    assert "python3 cannot make virtual environments" in done.stderr
    assert "apt-get install python3-venv" in done.stderr


def test_python_of_the_user_is_the_only_one_that_is_tried(tools: Path) -> None:
    (tools / "python3").symlink_to(sys.executable)
    done = run("bash", "requirements/find-python", "/nonexistent/python", path=str(tools))
    assert done.returncode == 1
    assert "/nonexistent/python" in done.stderr


def test_missing_system_packages_are_printed_where_they_cannot_be_installed(tools: Path, tmp_path: Path) -> None:
    wanted = tmp_path / "system.txt"
    wanted.write_text("# PACKAGE COMMAND\nbash bash\n\nno-such-package no-such-command\n")
    done = run("bash", "requirements/install-system-packages", str(wanted), path=str(tools))  # no apt-get on this PATH
    assert done.returncode == 0
    assert "missing: no-such-package" in done.stderr
    assert "apt-get install no-such-package" in done.stderr


def test_nothing_is_said_when_every_system_package_is_there(tools: Path, tmp_path: Path) -> None:
    wanted = tmp_path / "system.txt"
    wanted.write_text("bash bash\n")
    done = run("bash", "requirements/install-system-packages", str(wanted), path=str(tools))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["server.txt", "dev.txt", "s1.txt", "science.txt"])
def test_every_requirement_is_pinned_without_an_address(name: str) -> None:
    lines = (REPOSITORY / "requirements" / name).read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert not [line for line in pins if line.count("==") != 1 or "://" in line or line.startswith("-")]


def test_server_and_development_share_their_pins() -> None:
    server, dev = (
        set((REPOSITORY / "requirements" / name).read_text(encoding="utf-8").splitlines()[2:])
        for name in ("server.txt", "dev.txt")
    )
    assert server <= dev
