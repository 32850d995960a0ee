# SPDX-License-Identifier: MIT
"""Fixtures that every kind of test may use.

A test whose needs are not met skips and says why. With AGENTBOX_TEST_REQUIRE=1, as in continuous integration, such a
skip is a failure, so that a green run means that everything ran. `not_here(reason)` skips where no installation could
help (another processor, an ordinary user); that stays a skip.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from agentbox.linux import mounts
from tests import arrangement
from tests import docker_engine as docker_engine_of_host
from tests import standing as standings_of_host
from tests.running_server import RunningServer, launch
from tests.standing import Standing

REPOSITORY = Path(__file__).resolve().parents[1]
NOT_HERE = "not on this host: "


def not_here(reason: str) -> NoReturn:
    """Skip, also where every part is required: nothing that could be installed would make the test possible."""
    pytest.skip(NOT_HERE + reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if os.environ.get("AGENTBOX_TEST_REQUIRE") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if NOT_HERE not in reason:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid}: a part is missing (AGENTBOX_TEST_REQUIRE=1): {reason}"
    return report


def pytest_configure() -> None:
    arrangement.stand_apart()
    arrangement.be_interruptible()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    arrangement.longest_first(items)


def pytest_unconfigure() -> None:
    # A test that failed may leave a tree that is deeper than pytest can remove by recursion; rm can.
    for left in Path(tempfile.gettempdir(), f"pytest-of-{getpass.getuser()}").glob("garbage-*"):
        subprocess.run(["rm", "-rf", str(left)], check=False, capture_output=True)


@pytest.fixture(scope="session", autouse=True)
def unmounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing stays mounted in the tests' directories: what was killed before it could unmount its image."""
    base = str(tmp_path_factory.getbasetemp())
    yield
    for point in mounts.below(base) if os.path.exists("/proc/self/mountinfo") else ():
        with contextlib.suppress(OSError):
            mounts.detach(point)


@pytest.fixture(scope="session")
def start_server(
    tmp_path_factory: pytest.TempPathFactory, standings: Callable[[str], Standing]
) -> Iterator[Callable[..., RunningServer]]:
    """A function that starts a real server: `start_server(AGENTBOX_TOKEN="k", arguments=("--backend", "jail"))`.

    Each has a state directory of its own, unless `state` names one, and is ended, by its pid, at the end of the test
    session. `standing` starts it as another user (fixture `standings`, whose directories outlive the servers).
    """
    del standings
    started: list[RunningServer] = []

    def start(
        *,
        arguments: tuple[str, ...] = (),
        standing: Standing = standings_of_host.OWN,
        state: Path | None = None,
        **environment: str,
    ) -> RunningServer:
        state = state or (standing.user.directory("state") if standing.user else tmp_path_factory.mktemp("state"))
        server = launch(state, arguments, {**standing.environment, **environment}, standing.command)
        started.append(server)
        return server

    yield start
    # All at once: one after the other they would take half a minute.
    for server in started:
        server.ask_to_stop()
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def server(start_server: Callable[..., RunningServer]) -> RunningServer:
    """A server with default settings, shared by all tests that do not change it."""
    return start_server()


@pytest.fixture(scope="session")
def standings() -> Iterator[Callable[[str], Standing]]:
    """A function that gives one of `tests.standing.NAMES`; it skips what only root could prepare."""
    with standings_of_host.Standings() as prepared:

        def choose(name: str) -> Standing:
            found = prepared.choose(name)
            if isinstance(found, str):
                not_here(found)
            assert isinstance(found, Standing)
            return found

        yield choose


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[docker_engine_of_host.TestEngine]:
    """A Docker engine with runc, gVisor's runsc and the default image."""
    try:
        with docker_engine_of_host.engine() as found:
            yield found
    except docker_engine_of_host.MissingError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def s1_python() -> str:
    """The Python of an environment that holds the old HTTP service's client; `make test` prepares it."""
    return interpreter("AGENTBOX_TEST_S1_PYTHON")


@pytest.fixture(scope="session")
def science_python() -> str:
    """The Python of an environment that holds numpy, pandas and matplotlib; `make test` prepares it."""
    return interpreter("AGENTBOX_TEST_SCIENCE_PYTHON")


def interpreter(variable: str) -> str:
    """The Python that a variable names, which `make test` prepares."""
    path = os.environ.get(variable, "")
    if not shutil.which(path):
        pytest.skip(f"{variable} names no Python; `make test` prepares one")
    return path
