# SPDX-License-Identifier: MIT
"""A virtual environment that a run makes, fills and uses, under a policy that a person would write for that."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.policy_run import Project, new_project

pytestmark = pytest.mark.linux
PYTHON = sys.executable


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with a console script, as a wheel: what a build would make of it."""
    path = tmp_path_factory.mktemp("wheels") / "demo_tool-1.0-py3-none-any.whl"
    info = "demo_tool-1.0.dist-info"
    files = {
        "demo_tool/__init__.py": "def main():\n    print('says', open('data/notes.txt').read().strip())\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: demo-tool\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ndemo-say = demo_tool:main\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD")))
    return path


@pytest.fixture
def project(tmp_path: Path, wheel: Path) -> Project:
    if subprocess.run([PYTHON, "-c", "import ensurepip"], check=False, capture_output=True).returncode:
        pytest.skip("the tests' Python has no ensurepip")
    made = new_project(tmp_path)
    made.file("data/notes.txt", "hello\n")
    made.policy(
        f"read: ./data, {wheel.parent}",
        "write: ./out",
        f"exec: {PYTHON}, ./out/venv/bin/python, ./out/venv/bin/pip, ./out/venv/bin/demo-say",
    )
    return made


def test_a_run_makes_a_virtual_environment_installs_a_wheel_and_runs_its_script(project: Project, wheel: Path) -> None:
    made = project.run(PYTHON, "-m", "venv", "./out/venv")
    assert made.exit_code == 0, made
    offline = ("--no-index", "--find-links", str(wheel.parent), "--disable-pip-version-check")
    installed = project.run("./out/venv/bin/pip", "install", *offline, "demo-tool")
    assert installed.exit_code == 0, installed
    assert project.run("./out/venv/bin/demo-say", options=["-q"]).text == "says hello\n"
    code = (
        "import subprocess, sys\n"
        "print(subprocess.check_output(['out/venv/bin/demo-say']).decode())\n"
        "subprocess.run(['out/venv/bin/python', '-c', 'import demo_tool; demo_tool.main()'], check=True)\n"
    )
    started = project.run(PYTHON, "-c", code, options=["-q"])
    assert started.text.split() == ["says", "hello"] * 2, started
    assert project.verdict()[0] == 0


def test_everything_in_one_run_including_a_script_that_did_not_exist(project: Project, wheel: Path) -> None:
    code = (
        "import subprocess, sys\n"
        f"subprocess.run([{PYTHON!r}, '-m', 'venv', 'out/venv'], check=True)\n"
        f"subprocess.run(['out/venv/bin/python', '-m', 'pip', 'install', '-q', '--no-index', '--find-links',"
        f" {str(wheel.parent)!r}, '--disable-pip-version-check', 'demo-tool'], check=True)\n"
        "sys.stdout.flush(); subprocess.run(['out/venv/bin/demo-say'], check=True)\n"
    )
    done = project.run(PYTHON, "-c", code, options=["-q"])
    assert done.text == "says hello\n", done
    assert project.verdict()[0] == 0


def test_data_behind_a_link_that_a_rule_names_is_read_by_both_names(project: Project, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere"
    real.mkdir()
    (real / "a.txt").write_text("linked\n")
    (project.directory / "link").symlink_to(real)
    project.policy("read: ./link")
    code = f"print(open('link/a.txt').read(), open({str(real / 'a.txt')!r}).read())"
    done = project.run(PYTHON, "-c", code, options=["-q"])
    assert done.text.split() == ["linked", "linked"], done
