# SPDX-License-Identifier: MIT
"""Runs that the server records for a replay, and their replay: the report that `agentbox replay --json` gives."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentbox.isolation.plan import WORKSPACE
from tests.running_server import RunningServer

CODE = """\
import sys, time, uuid
import agentbox.client as box
print({*"abcdefghijklmnop"})
print(time.time(), uuid.uuid4(), sys.stdin.read(), sys.argv[1:])
print(box.read_text("in.txt"))
open("out.txt", "w").write("x" * 10)
sys.exit(2)
"""
WRITES = """\
import ctypes, os
open("in.txt", "w").write("hey")
os.chmod("in.txt", 0o644)
open("for a while", "w").close()
os.remove("for a while")
os.makedirs("made", exist_ok=True)
os.makedirs("made", exist_ok=True)
os.fchmod(os.open("other.txt", os.O_RDONLY), 0o600)
os.write(ctypes.CDLL(None).open(b"unseen", os.O_WRONLY | os.O_CREAT, 0o644), b"made where no guard looks")
print(sorted(os.listdir()))
"""
POLICY = "read: .\nwrite: ."
NODE = "require('fs').writeFileSync('o.txt', String(Math.random())); console.log(Date.now())"
ALICE, BOB = "a" * 40, "b" * 40

pytestmark = pytest.mark.linux


@pytest.fixture(scope="module")
def keyed(start_server: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    """A server with two callers; few traces are kept."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"alice:{ALICE}\nbob:{BOB}\n", encoding="utf-8")
    keys.chmod(0o600)
    return start_server(AGENTBOX_KEY_FILE=str(keys), AGENTBOX_TRACE_KEEP_RUNS="4")


@pytest.fixture
def client(keyed: RunningServer) -> Iterator[httpx.Client]:
    """The first of its callers."""
    with keyed.client(headers={"Authorization": f"Bearer {ALICE}"}) as found:
        yield found


@pytest.fixture
def server_state(keyed: RunningServer) -> Path:
    return keyed.state_dir


def _recorded(client: httpx.Client, code: str = CODE, **fields: Any) -> dict[str, Any]:
    asked = {"code": code, "record": True, "policy": POLICY, "files": {"in.txt": "hey"}, "stdin": "abc", "args": ["q"]}
    answer = client.post("/v1/run", json={**asked, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def _replayed(client: httpx.Client, run_id: str, **headers: str) -> httpx.Response:
    return client.post(f"/v1/runs/{run_id}/replay", headers=headers)


def test_a_recorded_run_replays_with_its_code_files_stdin_and_arguments(client: httpx.Client) -> None:
    run = _recorded(client)
    assert run["exit_code"] == 2, run
    assert "abc ['q']\nhey\n" in run["stdout"]
    report = _replayed(client, run["run_id"]).json()
    assert report["ok"] is True, report
    assert (report["started"], report["exit_code"], report["matched"]) == (True, 2, report["total"])
    assert report["total"] >= 3


def test_files_that_come_out_as_they_were_and_what_no_guard_sees_replay(client: httpx.Client) -> None:
    run = _recorded(client, WRITES, files={"in.txt": "hey", "other.txt": "x"})
    assert run["exit_code"] == 0, run
    report = _replayed(client, run["run_id"]).json()
    assert (report["ok"], report["notes"]) == (True, []), report


def test_node_replays_too(client: httpx.Client) -> None:
    run = _recorded(client, NODE, language="node")
    assert run["exit_code"] == 0, run
    report = _replayed(client, run["run_id"]).json()
    assert report["ok"] is True, report


def test_a_divergence_is_reported_with_its_step_file_and_line(client: httpx.Client, server_state: Path) -> None:
    run = _recorded(client, "import sys\nprint(open('in.txt').read())\n")
    [kept] = server_state.rglob(f"{run['run_id']}.request")
    request = json.loads(kept.read_bytes())
    request["files"]["in.txt"] = base64.b64encode(b"another text").decode()
    kept.write_text(json.dumps(request))
    report = _replayed(client, run["run_id"]).json()
    [found] = report["divergences"]
    assert (report["ok"], found["kind"], found["file"], found["line"]) == (
        False,
        "different",
        f"{WORKSPACE}/main.py",
        2,
    )
    assert found["expected"]["args"]["path"] == "/work/in.txt"
    assert found["expected"]["args"]["sha256"] != found["observed"]["args"]["sha256"]


def test_only_its_owner_replays_a_run_and_only_a_recorded_one(client: httpx.Client) -> None:
    recorded, plain = _recorded(client), _recorded(client, record=False)
    assert _replayed(client, recorded["run_id"], Authorization=f"Bearer {BOB}").status_code == 404
    assert _replayed(client, "0" * 32).status_code == 404
    refused = _replayed(client, plain["run_id"])
    assert refused.status_code == 404
    assert '"record": true' in refused.json()["hint"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"policy": None}, "needs a policy"), ({"language": "bash", "policy": "read: ."}, "bash does cannot be recorded")],
)
def test_what_cannot_be_recorded_is_refused(client: httpx.Client, fields: dict[str, Any], words: str) -> None:
    answer = client.post("/v1/run", json={"code": "print(1)", "policy": POLICY, "record": True, **fields})
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["detail"]


def test_what_is_kept_goes_with_its_trace(client: httpx.Client, server_state: Path) -> None:
    first = _recorded(client)["run_id"]
    assert len(list(server_state.rglob(f"{first}.*"))) >= 3
    for _ in range(4):
        _recorded(client, "print(1)")
    assert list(server_state.rglob(f"{first}.*")) == []
    assert _replayed(client, first).status_code == 404
