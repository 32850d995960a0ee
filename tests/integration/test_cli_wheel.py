# SPDX-License-Identifier: MIT
"""The wheel installs with pip and works from any directory."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from agentbox import __version__
from tests.running_server import clean_environment

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    # setuptools leaves its build directory beside the sources, so it gets a copy of them.
    sources = tmp_path_factory.mktemp("sources")
    names = ["pyproject.toml", "README.md", "LICENSE", "scripts", "src"]
    _run("bash", "-c", 'cp -r "$@"', "cp", *(str(REPOSITORY / name) for name in names), str(sources), cwd=REPOSITORY)
    _run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"),
        *("--no-build-isolation", "--wheel-dir", str(target), str(sources)),
        cwd=target,
    )
    (built,) = target.glob("agentbox-*.whl")
    return built


def test_wheel_holds_every_file_that_the_repository_keeps_in_the_package(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    kept = _run("git", "ls-files", "src", cwd=REPOSITORY).stdout.splitlines()
    assert {name.removeprefix("src/") for name in kept} <= packed
    assert "agentbox/py.typed" in packed
    assert not {name for name in packed if not name.startswith(("agentbox/", "agentsbx/", "agentbox-"))}


def test_installed_wheel_works_from_another_directory(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    _run(sys.executable, "-m", "venv", "--without-pip", str(venv), cwd=tmp_path)
    constraints = REPOSITORY / "requirements" / "server.txt"
    _run(
        *(sys.executable, "-m", "pip", "--python", str(venv / "bin/python")),
        *("install", "--quiet", "--disable-pip-version-check"),
        *("-c", str(constraints), str(wheel)),
        cwd=tmp_path,
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    script = str(venv / "bin" / "agentbox")
    # Of what the script imports itself, nothing may take long: it stands before every run.
    assert [
        line for line in Path(script).read_text().splitlines() if "import " in line and not line.startswith("#")
    ] == ["from agentbox.cli.main import main"]
    assert _run(script, "--version", cwd=elsewhere).stdout == f"agentbox, version {__version__}\n"
    _run(str(venv / "bin/python"), "-c", "from agentbox.sdk.client import AgentboxClient", cwd=elsewhere)

    without_server = subprocess.run(
        [script, "serve"], cwd=elsewhere, env=clean_environment({}), capture_output=True, text=True, check=False
    )
    assert without_server.returncode == 1
    assert "pip install 'agentbox[server]'" in without_server.stderr
    assert "Traceback" not in without_server.stderr


def _run(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, cwd=cwd, env=clean_environment({}), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done
