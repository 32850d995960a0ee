# SPDX-License-Identifier: MIT
"""Servers that keep Python warm, and one that does not, to compare with."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from tests.adversarial.guests import execute
from tests.conftest import not_here
from tests.running_server import RunningServer

WAYS = ("warm", "forked", "made")
# What makes a run take each way: a limit that stock has not, a variable that an interpreter reads when it starts.
FIELDS: dict[str, dict[str, object]] = {
    "warm": {},
    "forked": {"limits": {"disk_mb": 31, "timeout_seconds": 30}},
    "made": {"env": {"PYTHONHASHSEED": "random"}},
    "cold": {},
}
_WARM_SECONDS = 60.0


def until_warm(server: RunningServer, **headers: str) -> None:
    """Run until a warm child takes it. Raises AssertionError when none does for a minute."""
    deadline = time.monotonic() + _WARM_SECONDS
    with server.client(headers=headers) as client:
        while client.post("/v1/run", json={"code": "pass"}).json().get("timings", {}).get("start") != "warm":
            assert time.monotonic() < deadline, "no run was warm for a minute"


def warm_server(start_server: Callable[..., RunningServer], **settings: str) -> RunningServer:
    """A server of its own with a filled pool."""
    if os.geteuid() != 0:
        not_here("a warm pool needs control groups, which root has")
    server = start_server(**settings)
    until_warm(server)
    return server


@pytest.fixture(scope="session")
def pooled(start_server: Callable[..., RunningServer]) -> RunningServer:
    """Keeps Python warm; its environment holds a secret and a key."""
    return warm_server(start_server, DATABASE_URL="postgres://canary-of-the-server")


@pytest.fixture(scope="session")
def unpooled(start_server: Callable[..., RunningServer]) -> RunningServer:
    return start_server(AGENTBOX_POOL="0")


def said(server: RunningServer, code: str, way: str, **fields: object) -> str:
    """What a program printed that must end well, started that way."""
    deadline = time.monotonic() + _WARM_SECONDS
    while True:
        result = execute(server, code, **{**FIELDS[way], **fields})
        if result["timings"]["start"] == way:
            break
        assert time.monotonic() < deadline, f"no run was {way} for a minute"
    assert (result["outcome"], result["exit_code"], result["stderr"]) == ("exited", 0, ""), result
    return str(result["stdout"])
