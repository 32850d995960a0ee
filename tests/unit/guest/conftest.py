# SPDX-License-Identifier: MIT
"""The host and the interpreters of the guard's tests."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.nodes import name, nodes
from tests.unit.guest.guarded import Host

SECRET = "SECRET-7531"


def interpreters() -> list[str]:
    """This Python and the system's, when that is another."""
    found = [sys.executable]
    system = "/usr/bin/python3"
    if os.path.exists(system) and os.path.realpath(system) != os.path.realpath(sys.executable):
        found.append(system)
    return found


@pytest.fixture(params=interpreters(), ids=lambda path: "system" if path.startswith("/usr/bin") else "own")
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def host(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Host:
    """A project with `data/a.txt`, an empty `out`, and a secret beside them."""
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    (project / "out").mkdir()
    (project / "data" / "a.txt").write_text("hello")
    (project / "secret.txt").write_text(SECRET)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET)
    return Host(tmp_path, project, tmp_path_factory.getbasetemp() / "guards")


@pytest.fixture(params=nodes() or ["node"], ids=lambda path: name(path) if path != "node" else "node")
def node(request: pytest.FixtureRequest) -> str:
    if shutil.which(request.param) is None:
        pytest.skip("needs node")
    return str(request.param)
