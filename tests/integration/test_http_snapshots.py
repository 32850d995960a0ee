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


def test_a_run_whose_snapshot_is_over_the_quota_still_says_what_the_program_did(
    start_server: Callable[..., RunningServer],
) -> None:
    server = start_server(AGENTBOX_SNAPSHOT_QUOTA_BYTES="1024")
    with server.client() as client:
        code = "import os; open('f','wb').write(os.urandom(9000)); print('done')"
        answer = client.post("/v1/run", json={"code": code, "snapshot": True, "return_files": ["f"]})
        kept = client.get("/v1/snapshots").json()["snapshots"]
    body = answer.json()
    assert (answer.status_code, body["code"], kept) == (409, "quota_exceeded", [])
    assert (body["result"]["stdout"], body["result"]["snapshot_id"]) == ("done\n", None)
    assert body["result"]["files"]["f"]["bytes"] == 9000
