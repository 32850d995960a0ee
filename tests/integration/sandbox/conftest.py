# SPDX-License-Identifier: MIT
"""A sandbox of each backend, shared by tests that leave it running."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentbox import Sandbox
from tests.conftest import not_here

BACKENDS = ("jail", "gvisor", "docker-runc", "docker-runsc")
MakeSandbox = Callable[..., Sandbox]


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """The name of a backend that this host has."""
    name = str(request.param)
    if name == "gvisor":
        if os.geteuid() != 0:
            not_here("a gVisor box has three ids of its own, which root gives")
        if shutil.which("runsc") is None:
            pytest.skip("runsc is not installed; `make test` installs it")
    if name.startswith("docker"):
        engine = request.getfixturevalue("docker_engine")
        if name.removeprefix("docker-") not in engine.runtimes:
            pytest.skip(f"the engine has no {name.removeprefix('docker-')}")
        os.environ["AGENTBOX_DOCKER_HOST"] = engine.host
    return name


@pytest.fixture(scope="session")
def make_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeSandbox]:
    """A function that makes and starts a sandbox; it is stopped in the end."""
    state = tmp_path_factory.mktemp("state")
    made: list[Sandbox] = []

    def make(backend: str = "jail", **how: object) -> Sandbox:
        before = os.environ.get("AGENTBOX_STATE_DIR")
        os.environ["AGENTBOX_STATE_DIR"] = str(state)
        try:
            sandbox = Sandbox(backend=backend, **how)  # type: ignore[arg-type]
            sandbox.start()
        finally:
            if before is None:
                del os.environ["AGENTBOX_STATE_DIR"]
            else:
                os.environ["AGENTBOX_STATE_DIR"] = before
        made.append(sandbox)
        return sandbox

    yield make
    for sandbox in made:
        sandbox.stop()


@pytest.fixture(scope="session")
def sandbox(backend: str, make_sandbox: MakeSandbox) -> Iterator[Sandbox]:
    """One for all tests, which leave it running."""
    made = make_sandbox(backend, pids_limit=128, memory="512m", exec_timeout=30)
    yield made
    made.stop()


@pytest.fixture(scope="session")
def jailed(make_sandbox: MakeSandbox) -> Iterator[Sandbox]:
    """As `sandbox`, where one backend is enough."""
    made = make_sandbox("jail", pids_limit=128, memory="512m", exec_timeout=30)
    yield made
    made.stop()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory of the host that does not exist yet."""
    return tmp_path / "copied"
