# SPDX-License-Identifier: MIT
"""Containers outlive the keeper that made them: the next one takes them up as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.docker_engine import TestEngine
from tests.integration.sandboxes.conftest import made
from tests.integration.sandboxes.test_survival import BRIEF, kill_keeper
from tests.running_server import RunningServer


def test_next_keeper_takes_up_the_container_of_a_killed_one_with_its_files(
    docker_engine: TestEngine, start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    server = start_server(state=tmp_path, AGENTBOX_ALLOWED_BACKENDS="docker", **BRIEF, **docker_engine.environment)

    def containers(sandbox_id: str) -> list[str]:
        query = {"all": "1", "filters": json.dumps({"label": [f"agentbox.name={sandbox_id}"]})}
        return [one["Id"] for one in docker_engine.docker().ask("GET", "/containers/json", query)]

    with server.client() as client:
        box = made(client, backend="docker-runc", user="root")
        box.exec("echo installed > /usr/local/tool; echo kept > file")
        command = box.start("sleep 600")
        before = containers(box.id)
        kill_keeper(tmp_path)
        assert box.ask("GET", f"/commands/{command}").json()["running"] is False
        assert box.exec("cat /usr/local/tool file")["stdout"] == "installed\nkept\n"
        assert box.exec("pgrep -f [s]leep.600")["exit_code"] == 1
        assert containers(box.id) == before
        # A sandbox that nobody used since takes its container with it.
        kill_keeper(tmp_path)
        assert box.ask("DELETE").status_code == 204
        assert containers(box.id) == []
