# SPDX-License-Identifier: MIT
"""What is left of sandboxes when their server, or their keeper, is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from agentbox import Sandbox
from agentbox.errors import SandboxError
from tests.integration.sandboxes.conftest import Box, gone, keeper_pid, made
from tests.running_server import RunningServer

PATIENCE_SECONDS = 60.0
# A keeper that ends with its last server; no stock, which sandboxes do not use.
BRIEF = {"AGENTBOX_KEEPER_LINGER_SECONDS": "0", "AGENTBOX_POOL": "0"}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill_keeper(state: Path) -> int:
    pid = keeper_pid(state)
    os.kill(pid, signal.SIGKILL)
    until(lambda: gone(pid))
    return pid


def test_sandboxes_go_on_when_their_server_is_killed(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    server = start_server(state=tmp_path, AGENTBOX_POOL="0", AGENTBOX_KEEPER_LINGER_SECONDS="60")
    with server.client() as client:
        box = made(client)
        box.write("file", b"kept")
        command = box.start("read line; echo got $line; sleep 60", open_stdin=True)
        keeper = keeper_pid(tmp_path)
        remote = Sandbox(url=server.url)
        remote.start()
        server.process.kill()
        server.process.wait()
    # What could not be asked for can be asked for again.
    with pytest.raises(SandboxError):
        remote.stop()
    assert remote.running
    again = start_server(state=tmp_path, **BRIEF)
    with again.client() as client:
        box = Box(client, box.id)
        assert keeper_pid(tmp_path) == keeper
        assert box.ask("POST", f"/commands/{command}/stdin", content=b"you\n").status_code == 204
        told = box.ask("GET", f"/commands/{command}/output", params={"wait_seconds": 20})
        assert told.content == b"got you\n"
        assert (box.ask("GET").json()["rebuilt"], box.read("file")) == (0, b"kept")
        for one in client.get("/v1/sandboxes").json()["sandboxes"]:
            Box(client, one["id"]).ask("DELETE")
        os.kill(keeper, signal.SIGTERM)
        until(lambda: gone(keeper))


def test_next_keeper_knows_what_a_killed_one_kept(start_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    server = start_server(state=tmp_path, **BRIEF)
    with server.client() as client:
        box, expired = made(client, env={"COLOUR": "blue"}), made(client, workspace="named")
        unfinished = made(client)
        box.write("file", b"kept")
        expired.write("file", b"also")
        done = box.exec("seq 100000")
        command = box.start("echo before; sleep 600")
        box.ask("GET", f"/commands/{command}/output", params={"wait_seconds": 20})
        snapshot = box.ask("POST", "/snapshots", json={"name": "one"}).json()
        with ThreadPoolExecutor(1) as pool:
            known = len(box.ask("GET", "/commands").json()["commands"])
            waiting = pool.submit(
                lambda: httpx.post(f"{server.url}{box.path}/exec", json={"command": "sleep 60"}, timeout=120)
            )
            until(lambda: len(box.ask("GET", "/commands").json()["commands"]) > known)
            killed = kill_keeper(tmp_path)
            told = waiting.result(PATIENCE_SECONDS)
            assert (told.status_code, told.json()["code"]) == (503, "keeper_lost")
        # As it is while a box is built.
        with contextlib.closing(sqlite3.connect(tmp_path / "sandboxes.db")) as journal, journal:
            begun = "UPDATE sandboxes SET facts = json_set(facts, '$.beginning', json('true')) WHERE id = ?"
            assert journal.execute(begun, (unfinished.id,)).rowcount == 1

        listed = client.get("/v1/sandboxes").json()["sandboxes"]
        assert keeper_pid(tmp_path) != killed
        assert [one["id"] for one in listed] == [box.id, expired.id]
        assert [one["enforcement"]["filesystem"] for one in listed] == ["kernel", "kernel"]
        lost = box.ask("GET", f"/commands/{command}").json()
        assert (lost["running"], lost["exit_code"], lost["signal"], lost["closed"]) == (False, 137, 9, True)
        assert "keeper" in lost["lost"]
        assert box.ask("GET", f"/commands/{command}/output").content == b"before\n"
        assert box.ask("GET", f"/commands/{done['id']}").json() == {
            name: value for name, value in done.items() if not name.startswith(("stdout", "stderr")) or "bytes" in name
        }
        output = box.ask("GET", f"/commands/{done['id']}/output", params={"limit": 1 << 24}).content
        assert output == b"".join(b"%d\n" % number for number in range(1, 100001))
        assert box.ask("POST", f"/commands/{command}/kill").json() == {"survivors": 0}

        # Built around its workspace at its next use.
        assert (box.read("file"), expired.read("file")) == (b"kept", b"also")
        assert box.exec("echo $COLOUR")["stdout"] == "blue\n"
        assert box.ask("GET").json()["rebuilt"] == 1
        assert [one["argv"] for one in box.ask("GET", "/commands").json()["commands"]][-1] == [
            "bash", "-c", "echo $COLOUR",
        ]  # fmt: skip
        assert snapshot in box.ask("GET", "/snapshots").json()["snapshots"]
        assert box.ask("GET", "/trace").headers["x-agentbox-parts"] == "2"
        box.ask("DELETE")
        expired.ask("DELETE")
    keeper = keeper_pid(tmp_path)
    server.stop()
    until(lambda: gone(keeper))
    left = [path for path in tmp_path.rglob("*") if any(one.id in path.name for one in (box, expired, unfinished))]
    assert left == []


def test_servers_of_one_state_directory_share_one_keeper_that_ends_with_the_last(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    # Longer than the kernel's bound for the path of a socket.
    state = tmp_path / ("x" * 120)
    state.mkdir()
    servers = [start_server(state=state, **BRIEF) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        listed = list(pool.map(lambda server: httpx.get(f"{server.url}/v1/sandboxes", timeout=60).status_code, servers))
    assert listed == [200, 200]
    with servers[0].client() as client, servers[1].client() as other:
        box = made(client)
        assert Box(other, box.id).exec("echo shared")["stdout"] == "shared\n"
    keeper = keeper_pid(state)
    assert os.getsid(keeper) == keeper
    assert (state / "keeper.sock").stat().st_mode & 0o777 == 0o600
    servers[0].stop()
    assert httpx.get(f"{servers[1].url}/v1/sandboxes", timeout=60).status_code == 200
    assert not gone(keeper)
    servers[1].stop()
    until(lambda: gone(keeper))
    assert not (state / "keeper.sock").exists()

    # Without a server sandboxes are put to rest, and found by the next.
    third = start_server(state=state, **BRIEF)
    with third.client() as client:
        assert [one["id"] for one in client.get("/v1/sandboxes").json()["sandboxes"]] == [box.id]
        assert Box(client, box.id).ask("DELETE").status_code == 204
