# SPDX-License-Identifier: MIT
"""A project whose policy grants little, and the canaries that its commands must not reach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adversarial.escape.canaries import Canaries, canaries
from tests.policy_run import Project, new_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """read ./data, write ./out, exec echo: the policy that the old runtime's guard was attacked under."""
    made = new_project(tmp_path)
    made.policy("read: ./data", "write: ./out", "exec: echo")
    made.file("data/notes.txt", "notes\n")
    return made


@pytest.fixture(scope="module")
def canary() -> Iterator[Canaries]:
    """Things on the host that only the box stands before."""
    with canaries(0) as placed:
        yield placed
