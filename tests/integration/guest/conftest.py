# SPDX-License-Identifier: MIT
"""The host and the interpreters of the guard's tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import pythons
from tests.integration.guest.guarded import Host
from tests.nodes import name, nodes

SECRET = "SECRET-7531"


@pytest.fixture(params=pythons.pythons(), ids=pythons.name)
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
