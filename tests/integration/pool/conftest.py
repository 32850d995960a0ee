# SPDX-License-Identifier: MIT
"""Two servers that differ in one setting: one keeps Python warm, one does not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.running_server import RunningServer

Run = Callable[..., dict[str, Any]]
_WARM_SECONDS = 60.0


def runner_of(server: RunningServer, client: httpx.Client) -> Run:
    """A function that runs code on that server and returns its answer, a timeout's too."""

    def run(code: str, **more: Any) -> dict[str, Any]:
        answer = client.post("/v1/run", json={"code": code, **more})
        assert answer.status_code in (200, 408), answer.text
        body = answer.json()
        found: dict[str, Any] = body if answer.status_code == 200 else body["result"]
        return found

    return run


def until_warm(run: Run) -> None:
    """Run until a warm child takes it. Raises AssertionError when none does for a minute."""
    deadline = time.monotonic() + _WARM_SECONDS
    while run("pass")["timings"]["start"] != "warm":
        assert time.monotonic() < deadline, "no run was warm for a minute"


@pytest.fixture(scope="session")
def warm_server(start_server: Callable[..., RunningServer]) -> RunningServer:
    """Keeps Python warm."""
    return start_server(AGENTBOX_POOL="1")


@pytest.fixture(scope="session")
def cold_server(start_server: Callable[..., RunningServer]) -> RunningServer:
    """Does not."""
    return start_server(AGENTBOX_POOL="0")


@pytest.fixture(scope="session")
def warm(warm_server: RunningServer) -> Iterator[Run]:
    with warm_server.client() as client:
        run = runner_of(warm_server, client)
        until_warm(run)
        yield run


@pytest.fixture(scope="session")
def cold(cold_server: RunningServer) -> Iterator[Run]:
    with cold_server.client() as client:
        yield runner_of(cold_server, client)
