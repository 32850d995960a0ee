# SPDX-License-Identifier: MIT
"""Others' suites judge our sandboxes: Inspect's, deepagents' on one backend; AGENTBOX_TEST_JUDGED for more."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.conftest import REPOSITORY, interpreter
from tests.docker_engine import TestEngine

BACKENDS = ("jail", "gvisor", "docker-runc", "docker-runsc")
# How many checks there are, and how many of them fail as is known: a box of the jail has one user.
INSPECT, DEEPAGENTS, OF_USERS = 44, 86, {"jail": 1}
# "all", or one backend; without it a part that takes little time.
JUDGED = os.environ.get("AGENTBOX_TEST_JUDGED", "")
_PATIENCE_SECONDS = 600


def _cases() -> list[tuple[str, str]]:
    every = [(suite, backend) for backend in BACKENDS for suite in ("inspect", "deepagents")]
    if not JUDGED:
        return [case for case in every if case[0] == "inspect" or case[1] == "docker-runsc"]
    return [case for case in every if JUDGED in ("all", case[1])]


@pytest.fixture(scope="module")
def judgements(
    docker_engine: TestEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str], subprocess.Popen[str]]]:
    """All suites at once: they wait a lot."""
    python = interpreter("AGENTBOX_TEST_JUDGES_PYTHON")
    begun = {}
    for suite, backend in _cases():
        place = tmp_path_factory.mktemp(f"{suite}-{backend}")
        begun[suite, backend] = subprocess.Popen(
            [python, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", f"--basetemp={place}/tests",
             f"tests/judges/{suite}_checks.py"],
            cwd=REPOSITORY,
            env={**os.environ, **docker_engine.environment, "JUDGED": backend, "PYTHONPATH": str(REPOSITORY / "src"),
                 "AGENTBOX_STATE_DIR": str(place / "state")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
    yield begun
    for process in begun.values():
        process.kill()
        process.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="not on this host: gVisor and containers need root")
@pytest.mark.parametrize(("suite", "backend"), _cases())
def test_every_check_of_the_judge_passes(
    judgements: dict[tuple[str, str], subprocess.Popen[str]], suite: str, backend: str
) -> None:
    said, _ = judgements[suite, backend].communicate(timeout=_PATIENCE_SECONDS)
    count, known = (INSPECT, OF_USERS.get(backend, 0)) if suite == "inspect" else (DEEPAGENTS, 0)
    wanted = f"{count - known} passed" + (f"(, [0-9]+ warnings?)?, {known} xfailed" if known else "")
    assert re.search(rf"^{wanted}", said.splitlines()[-1]), said
    assert "failed" not in said.splitlines()[-1].replace("xfailed", "")
