# SPDX-License-Identifier: MIT
"""In continuous integration a part that is missing fails the run; elsewhere it is a skip that says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.render import REPOSITORY
from tests.running_server import clean_environment

SAMPLE = """
import pytest
from tests.conftest import not_here

def test_missing(): pytest.skip("node is not installed")
def test_elsewhere(): not_here("another processor")
@pytest.mark.xfail
def test_known(): assert False
def test_science(science_python): pass
"""


@pytest.mark.parametrize(
    ("required", "summary"), [("", "3 skipped, 1 xfailed"), ("1", "1 failed, 1 skipped, 1 xfailed, 1 error")]
)
def test_missing_part_fails_only_where_every_part_is_required(tmp_path: Path, required: str, summary: str) -> None:
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-c", "/dev/null", "--rootdir", ".", "."],
        cwd=tmp_path,
        env=clean_environment({"PYTHONPATH": str(REPOSITORY), "AGENTBOX_TEST_REQUIRE": required}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert summary in done.stdout, done.stdout
    if required:
        assert "node is not installed" in done.stdout
