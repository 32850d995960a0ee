# SPDX-License-Identifier: MIT
"""Stored snapshots, as an operator sees them on the disk."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.running_server import RunningServer

PATIENCE_SECONDS = 60.0


def test_an_expired_snapshot_leaves_the_disk_without_being_asked_for(
    start_server: Callable[..., RunningServer],
) -> None:
    server = start_server(AGENTBOX_SNAPSHOT_TTL_SECONDS="1")
    with server.client() as client:
        answer = client.post("/v1/run", json={"code": "open('f','w').write('x')", "snapshot": True})
    assert answer.json()["snapshot_id"]
    store = server.state_dir / "snapshots"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (left := list(store.rglob("*.tar.gz"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
