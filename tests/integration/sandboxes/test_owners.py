# SPDX-License-Identifier: MIT
"""One key never reaches another's: every route of the document is tried with another's ids."""

from __future__ import annotations

from typing import Any

import httpx

from tests.integration.sandboxes.conftest import Box, made

# Bodies with which each operation would do something to a sandbox of one's own.
BODIES: dict[str, Any] = {
    "exec_in_sandbox": {"command": "touch reached"},
    "start_command": {"command": "touch reached"},
    "signal_command": {"signal": "SIGKILL"},
    "resize_terminal": {"rows": 1, "columns": 1},
    "make_directory": {"path": "reached"},
    "move_file": {"path": "secret", "to": "reached"},
    "call_tool": {"command": "touch reached"},
}
QUERIES = {"path": "secret"}


def test_no_route_reaches_what_is_another_keys(alice: httpx.Client, bob: httpx.Client, box: Box) -> None:
    box.write("secret", b"alice's")
    snapshot = box.ask("POST", "/snapshots", json={"name": "mine"}).json()["snapshot_id"]
    command = box.start("cat; echo read", open_stdin=True)
    own = made(bob)
    before = (box.ask("GET", "/files/list", params={"depth": -1}).json(), alice.get("/v1/sandboxes").json())
    document = bob.get("/openapi.json").json()
    tried = 0
    for path, item in document["paths"].items():
        if not path.startswith("/v1/sandboxes/"):
            continue
        for method, operation in item.items():
            if method == "parameters":
                continue
            tried += 1
            name = operation["operationId"]
            body = BODIES.get(name, {"snapshot_id": snapshot} if name == "restore_sandbox" else None)
            more: dict[str, Any] = {"json": body} if body is not None else {}
            if method == "put":
                more = {"content": b"reached"}
            answers = []
            for sandbox_id in (box.id, "sbx-0123456789abcdef"):
                filled = path.format(sandbox_id=sandbox_id, command_id=command, snapshot_id=snapshot, tool="shell_exec")
                answer = bob.request(method, filled, params=QUERIES if "files" in path else {}, **more)
                answers.append((answer.status_code, answer.text.replace(sandbox_id, "ID").split("request_id")[0]))
            assert answers[0][0] == 404, (name, answers[0])
            assert answers[0] == answers[1], name
    assert tried > 25

    # Nor by way of a sandbox of one's own.
    assert own.ask("GET", f"/commands/{command}").status_code == 404
    assert own.ask("POST", "/restore", json={"snapshot_id": snapshot}).status_code == 404
    assert own.ask("DELETE", f"/snapshots/{snapshot}").status_code == 404
    assert own.ask("GET", "/snapshots").json() == {"snapshots": []}
    assert bob.post("/v1/sandboxes", json={"snapshot_id": snapshot}).status_code == 404
    assert bob.get(f"/v1/snapshots/{snapshot}").status_code == 404
    assert [one["id"] for one in bob.get("/v1/sandboxes").json()["sandboxes"]] == [own.id]
    own.ask("DELETE")

    after = (box.ask("GET", "/files/list", params={"depth": -1}).json(), alice.get("/v1/sandboxes").json())
    assert before[0] == after[0]
    assert [one["id"] for one in before[1]["sandboxes"]] == [one["id"] for one in after[1]["sandboxes"]]
    assert box.ask("GET", f"/commands/{command}").json()["running"] is True
    assert box.ask("GET", f"/commands/{command}/output").content == b""
