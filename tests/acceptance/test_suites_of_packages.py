# SPDX-License-Identifier: MIT
"""The test suites of three published packages give the same results under `agentbox run` as without it.

path works on files and directories, toolz computes with processes too, sh starts programs with pipes, terminals,
signals and threads. They are fetched once for each version, by pip as this host has it configured.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import not_here
from tests.policy_run import Project, new_project

pytestmark = pytest.mark.linux
_FETCH_SECONDS = 300
_SUITE_SECONDS = 400
_OF_SH = (
    "out",
    "err",
    "stdin",
    "pipe",
    "tty",
    "glob",
    "cwd",
    "env",
    "iter",
    "unicode",
    "bake",
    "args",
    "exit",
    "stream",
)
_RESULT = re.compile(r"^(?P<test>\S+::\S+) (?P<word>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)", re.MULTILINE)
_ATTEMPTS = 3


@dataclass(frozen=True)
class Suite:
    """A package by its version; `tests` are what pytest is told to run, `programs` what they start."""

    package: str
    version: str
    tests: tuple[str, ...]
    programs: str = ""

    @property
    def directory(self) -> str:
        return f"{self.package}-{self.version}"


SUITES = (
    Suite("path", "17.1.1", ()),
    Suite("toolz", "1.0.0", ()),
    Suite(
        "sh",
        "2.4.0",
        # What starts ordinary programs; the rest waits for time to pass, or runs scripts that it wrote itself.
        ("tests", "-k", "FunctionalTests and (" + " or ".join(_OF_SH) + ")"),
        "sh, bash, ls, cat, echo, sleep, env, uname, wc, tr, grep, sort, du, find, true, false, printf, head, git, ps,"
        " tail, date, seq, tee, id, whoami, pwd, stty",
    ),
)


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with pytest and the packages, and their sources beside it."""
    place = tmp_path_factory.mktemp("suites")
    cache = Path(tempfile.gettempdir(), f"agentbox-test-sources-{os.getuid()}")
    cache.mkdir(mode=0o700, exist_ok=True)
    python = place / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place / "venv")], check=True)
    for suite in SUITES:
        archive = cache / f"{suite.directory}.tar.gz"
        if not archive.exists():
            options = ("--no-deps", "--no-binary", suite.package, "-d", str(cache), "--disable-pip-version-check")
            _pip(python, "download", *options, f"{suite.package}=={suite.version}")
        with tarfile.open(archive) as packed:
            packed.extractall(place, filter="data")
    _pip(python, "install", "pytest", "more-itertools", *(f"{suite.package}=={suite.version}" for suite in SUITES))
    return place


def _pip(python: Path, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), *words],
        capture_output=True,
        text=True,
        timeout=_FETCH_SECONDS,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    if done.returncode:
        not_here(f"the packages cannot be had: {done.stderr.strip().splitlines()[-1]}")


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.package)
def test_a_package_s_own_tests_end_as_they_do_without_a_policy(suite: Suite, fetched: Path, tmp_path: Path) -> None:
    project = new_project(tmp_path)
    source = fetched / suite.directory
    project = Project(source, project.state)
    programs = f", {suite.programs}" if suite.programs else ""
    project.policy("read: .", f"exec: {fetched}/venv/bin/python{programs}", "env: PYTEST_*, PYTHONDONTWRITEBYTECODE")
    command = [str(fetched / "venv/bin/python"), "-m", "pytest", "-v", "-p", "no:cacheprovider", "-o", "addopts="]
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "HOME": str(tmp_path)}
    with subprocess.Popen(
        [*command, *suite.tests],
        cwd=source,
        env=project.environ(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as without:
        # They wait more than they work, so both go on at once.
        done = project.run(*command, *suite.tests, options=["-q"], environment=environment, timeout=_SUITE_SECONDS)
        bare = _results(without.communicate(timeout=_SUITE_SECONDS)[0])
    assert sum(word == "PASSED" for word in bare.values()) > 60, bare
    boxed = _results(done.text)
    assert boxed.keys() == bare.keys(), done.text[-4000:]
    # Some of these tests depend on time: one that fails has further chances, alone.
    for _ in range(_ATTEMPTS):
        worse = [test for test, word in bare.items() if word == "PASSED" and boxed[test] != "PASSED"]
        if not worse:
            break
        done = project.run(*command, *worse, options=["-q"], environment=environment, timeout=_SUITE_SECONDS)
        boxed |= _results(done.text)
    assert worse == [], done.text[-4000:]
    assert project.verdict()[0] == 0


def _results(text: str) -> dict[str, str]:
    """What each test came to, as pytest says it."""
    return {found["test"]: found["word"] for found in _RESULT.finditer(text)}
