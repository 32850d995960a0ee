# SPDX-License-Identifier: MIT
"""One server whose boxes are gVisor's, and one set of facilities for tests that build boxes themselves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import not_here
from tests.running_server import RunningServer

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session", autouse=True)
def gvisor() -> None:
    """Skip where this host cannot have gVisor boxes."""
    if os.geteuid() != 0:
        not_here("a gVisor box has three ids of its own, which root gives")
    if shutil.which("runsc") is None:
        pytest.skip("runsc is not installed; `make test` installs it")


@pytest.fixture(scope="session")
def gvisor_server(start_server: Callable[..., RunningServer]) -> RunningServer:
    """Runs without a way out unless they ask for one."""
    return start_server(
        arguments=("--backend", "gvisor"),
        AGENTBOX_ALLOW_REQUEST_EGRESS="1",
        AGENTBOX_MAX_TOTAL_OUTPUT_BYTES=str(4 << 20),
    )


@pytest.fixture(scope="session")
def client(gvisor_server: RunningServer) -> Iterator[httpx.Client]:
    with gvisor_server.client() as found:
        yield found


@pytest.fixture(scope="session")
def run(client: httpx.Client) -> Run:
    """A function that runs code on that server and returns its answer, a timeout's too."""

    def run(code: str, **more: Any) -> dict[str, Any]:
        answer = client.post("/v1/run", json={"code": code, **more})
        assert answer.status_code in (200, 408), answer.text
        body = answer.json()
        found: dict[str, Any] = body if answer.status_code == 200 else body["result"]
        return found

    return run
