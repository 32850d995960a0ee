# SPDX-License-Identifier: MIT
"""Traces of runs behind the HTTP API: who gets one, what is in it, and that it stands up to `agentbox verify`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentbox.sdk.client import AgentboxClient, AgentboxHTTPError
from tests.conftest import not_here
from tests.integration.commands import Finished, agentbox
from tests.running_server import RunningServer

SPAWNS = "import subprocess\nsubprocess.run(['ls'])\ntry: subprocess.run(['/usr/bin/id'])\nexcept OSError: pass\n"
POLICY = "read: .\nexec: ls"
ALICE, BOB = "a" * 40, "b" * 40
DEADLINE_SECONDS = 60.0


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as found:
        yield found


@pytest.fixture(scope="module")
def keyed(start_server: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    """A server with two callers."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"alice:{ALICE}\nbob:{BOB}\n", encoding="utf-8")
    keys.chmod(0o600)
    return start_server(AGENTBOX_KEY_FILE=str(keys))


def run(client: httpx.Client, code: str, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/run", json={"code": code, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def downloaded(client: httpx.Client, run_id: str, directory: Path) -> Path:
    answer = client.get(f"/v1/runs/{run_id}/trace")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/jsonl"
    path = directory / "downloaded.jsonl"
    path.write_bytes(answer.content)
    return path


def verified(client: httpx.Client, trace: Path, directory: Path) -> Finished:
    """`agentbox verify` as somebody who has the file, the server's public key, and nothing else of the server."""
    key = directory / "server.pem"
    key.write_text(client.get("/v1/key").text, encoding="ascii")
    elsewhere = {"AGENTBOX_STATE_DIR": str(directory / "elsewhere")}
    return agentbox("verify", "--json", "--key", str(key), str(trace), environment=elsewhere)


def records(trace: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]


def end_of(trace: Path) -> dict[str, Any]:
    """What is recorded of the end of its run. A checkpoint may follow before the seal, as at any time."""
    [end] = [record["args"] for record in records(trace) if record["op"] == "run.end"]
    return end


def test_a_downloaded_trace_verifies_with_the_servers_public_key(client: httpx.Client, tmp_path: Path) -> None:
    body = run(client, SPAWNS, policy=POLICY)
    trace = downloaded(client, body["run_id"], tmp_path)
    done = verified(client, trace, tmp_path)
    assert done.exit_code == 0, done
    verdict = json.loads(done.stdout)
    assert (verdict["status"], verdict["sealed"], verdict["run"]) == ("ok", True, body["run_id"])
    assert body["trace"] == {"count": verdict["count"], "sha": records(trace)[-1]["sha"]}


def test_a_trace_that_was_edited_or_cut_does_not_verify(client: httpx.Client, tmp_path: Path) -> None:
    trace = downloaded(client, run(client, SPAWNS, policy=POLICY)["run_id"], tmp_path)
    whole = trace.read_bytes()
    trace.write_bytes(whole.replace(b"/usr/bin/id", b"/usr/bin/ls"))
    assert verified(client, trace, tmp_path).exit_code == 1
    trace.write_bytes(whole[: whole.rstrip(b"\n").rindex(b"\n") + 1])
    assert verified(client, trace, tmp_path).exit_code == 5


def test_a_trace_says_what_ran_under_what_and_how_it_ended(client: httpx.Client, tmp_path: Path) -> None:
    body = run(client, SPAWNS, policy=POLICY + "\nlimits: memory_mb=200")
    first, *between, end, seal = records(downloaded(client, body["run_id"], tmp_path))
    assert (first["op"], end["op"], seal["op"]) == ("run.start", "run.end", "trace.seal")
    facts = first["args"]
    assert facts["code_sha256"] == hashlib.sha256(SPAWNS.encode()).hexdigest()
    assert (facts["run"], facts["language"], facts["backend"]) == (body["run_id"], "python", body["backend"])
    assert facts["limits"]["memory_mb"] == 200
    assert len(facts["policy_sha256"]) == 64
    started = [record["args"]["exe"] for record in between if record["op"] == "proc.exec"]
    assert started[-1] == "/usr/bin/ls"
    assert "python" in started[0]
    assert (end["args"]["returncode"], end["args"]["outcome"]) == (0, "exited")
    assert end["args"]["usage"]["cpu_ms"] is None or end["args"]["usage"]["cpu_ms"] > 0


def test_each_denial_of_the_result_is_a_record_of_the_trace(client: httpx.Client, tmp_path: Path) -> None:
    body = run(client, SPAWNS, policy=POLICY, env={"SECRET_NAME": "SECRET VALUE"})
    found = records(downloaded(client, body["run_id"], tmp_path))
    assert {denial["effect"] for denial in body["denials"]} == {"exec", "env"}
    for denial in body["denials"]:
        record = found[denial["trace_index"]]
        assert (record["kind"], record["op"], record["args"]["target"]) == ("deny", denial["effect"], denial["target"])


def test_no_code_input_or_value_of_a_variable_is_in_a_trace(client: httpx.Client, tmp_path: Path) -> None:
    secrets = {"A": "VALUE-OF-A"}
    body = run(
        client, "'CODE-TEXT'", policy="env: A", env=secrets, stdin="STDIN-TEXT", files={"f": "FILE-TEXT"},
    )  # fmt: skip
    text = downloaded(client, body["run_id"], tmp_path).read_text(encoding="utf-8")
    assert not [word for word in ("VALUE-OF-A", "CODE-TEXT", "STDIN-TEXT", "FILE-TEXT") if word in text]


def test_a_trace_is_kept_where_it_is_asked_for(client: httpx.Client, tmp_path: Path) -> None:
    body = run(client, SPAWNS)
    assert body["trace"] is None
    assert client.get(f"/v1/runs/{body['run_id']}/trace").status_code == 404
    asked = run(client, SPAWNS, trace=True)
    assert (asked["denials"], asked["enforcement"]["exec"]) == ([], "none")
    found = records(downloaded(client, asked["run_id"], tmp_path))
    assert [record["args"]["exe"] for record in found if record["op"] == "proc.exec"][1:] == [
        "/usr/bin/ls",
        "/usr/bin/id",
    ]


def test_an_operator_may_record_every_run(start_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    server = start_server(AGENTBOX_TRACE_RUNS="all")
    with server.client() as client:
        body = run(client, "print(1)", language="bash")
        assert verified(client, downloaded(client, body["run_id"], tmp_path), tmp_path).exit_code == 0


def test_the_trace_of_a_run_that_passed_its_timeout_is_sealed(client: httpx.Client, tmp_path: Path) -> None:
    answer = client.post(
        "/v1/run", json={"code": "import time; time.sleep(60)", "trace": True, "limits": {"timeout_seconds": 1}}
    )
    assert answer.status_code == 408
    body = answer.json()["result"]
    trace = downloaded(client, body["run_id"], tmp_path)
    assert verified(client, trace, tmp_path).exit_code == 0
    assert end_of(trace)["outcome"] == "timed_out"
    assert body["trace"]["sha"] == records(trace)[-1]["sha"]


def test_the_trace_of_a_run_whose_client_went_away_is_sealed(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    server = start_server()
    with server.client() as client:
        body = {"code": "print('begun', flush=True)\nimport time; time.sleep(60)", "policy": "read: ."}
        with client.stream("POST", "/v1/run", json=body, headers={"Accept": "text/event-stream"}) as answer:
            assert any("begun" in line for line in answer.iter_lines())
    [trace] = _eventually(lambda: _sealed(server.state_dir / "traces" / "default"))
    assert agentbox("verify", str(trace), environment={"AGENTBOX_STATE_DIR": str(server.state_dir)}).exit_code == 0
    assert end_of(trace)["error"] == "CancelledError"


def test_a_killed_server_leaves_a_trace_without_an_end_and_the_next_one_hands_it_out(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    server = start_server(state=state)
    with server.client() as client:
        body = {"code": "print('begun', flush=True)\nimport time; time.sleep(60)", "policy": "read: ."}
        with client.stream("POST", "/v1/run", json=body, headers={"Accept": "text/event-stream"}) as answer:
            assert any("begun" in line for line in answer.iter_lines())
            server.process.kill()
            server.process.wait()
    [left] = (state / "traces" / "default").iterdir()
    with start_server(state=state).client() as client:
        trace = downloaded(client, left.stem, tmp_path)
        assert verified(client, trace, tmp_path).exit_code == 5


def test_a_trace_belongs_to_the_key_whose_run_it_is(keyed: RunningServer) -> None:
    alice = {"Authorization": f"Bearer {ALICE}"}
    bob = {"Authorization": f"Bearer {BOB}"}
    with keyed.client() as client:
        answer = client.post("/v1/run", json={"code": "print(1)", "trace": True}, headers=alice)
        path = f"/v1/runs/{answer.json()['run_id']}/trace"
        assert client.get(path, headers=alice).status_code == 200
        refused = client.get(path, headers=bob)
        assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
        unknown = client.get(f"/v1/runs/{'0' * 32}/trace", headers=bob)
        assert unknown.json()["detail"].split("'")[0] == refused.json()["detail"].split("'")[0]
        assert client.get(path).status_code == 401
        assert client.get("/v1/key").status_code == 401


@pytest.mark.parametrize("name", ["0" * 32, "x", "..", "%2e%2e", "..%2Fdefault", "0" * 31 + "%00", "A" * 5000])
def test_what_is_no_run_of_the_caller_is_not_found(client: httpx.Client, name: str) -> None:
    assert client.get(f"/v1/runs/{name}/trace").status_code == 404


def test_the_oldest_traces_make_room(start_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    server = start_server(AGENTBOX_TRACE_KEEP_RUNS="2")
    with server.client() as client:
        ids = [run(client, "print(1)", trace=True)["run_id"] for _ in range(3)]
        assert [client.get(f"/v1/runs/{name}/trace").status_code for name in ids] == [404, 200, 200]
    assert len(list((server.state_dir / "traces" / "default").iterdir())) == 2


def test_a_run_that_records_too_much_is_ended(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(AGENTBOX_TRACE_MAX_BYTES=str(1 << 16))
    code = "import subprocess\nwhile True: subprocess.run(['/bin/true', 'x' * 4000])"
    with server.client() as client:
        answer = client.post("/v1/run", json={"code": code, "trace": True, "limits": {"timeout_seconds": 60}})
        assert (answer.status_code, answer.json()["code"]) == (503, "trace_error")
        assert str(server.state_dir) not in answer.text
        assert run(client, "print(1)", trace=True)["stdout"] == "1\n"


def test_a_full_disk_refuses_a_run_that_must_be_recorded(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    traces = tmp_path / "state" / "traces"
    traces.mkdir(parents=True, mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(traces)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        not_here("a small file system can be mounted by root alone")
    try:
        server = start_server(state=tmp_path / "state")
        with server.client() as client:
            assert run(client, "print(1)", trace=True)["exit_code"] == 0
            _fill(traces / "filler")
            answer = client.post("/v1/run", json={"code": "print('ran')", "trace": True})
            assert (answer.status_code, answer.json()["code"]) == (503, "trace_error")
            assert "ran" not in answer.json().get("result", {}).get("stdout", "")
            assert str(traces) not in answer.text
            assert run(client, "print('ran')")["stdout"] == "ran\n", "a run without a trace needs no disk for one"
            (traces / "filler").unlink()
            assert run(client, "print(1)", trace=True)["trace"]["count"] > 2
        assert any("No space left" in line for line in server.lines)
        server.stop()
    finally:
        subprocess.run(["umount", str(traces)], check=True)


def test_the_python_client_takes_a_policy_and_hands_out_denials_trace_and_key(
    server: RunningServer, tmp_path: Path
) -> None:
    with AgentboxClient(server.url) as client:
        result = client.run(SPAWNS, policy=POLICY)
        assert result.denials[0]["rule_missing"] == "exec: /usr/bin/id"
        trace = tmp_path / "trace.jsonl"
        trace.write_bytes(b"".join(client.trace(result.run_id)))
        assert result.trace is not None
        assert records(trace)[-1]["sha"] == result.trace["sha"]
        assert client.public_key().startswith("-----BEGIN PUBLIC KEY-----")
        with pytest.raises(AgentboxHTTPError) as caught:
            list(client.trace("0" * 32))
        assert caught.value.status == 404
        with pytest.raises(ValueError, match="not a run id"):
            list(client.trace("../../health"))
        with pytest.raises(AgentboxHTTPError) as caught:
            client.run("1", policy="wrte: x")
        assert caught.value.body["policy"]["line"] == 1


def _fill(path: Path) -> None:
    """Write until the file system is full."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)


def _sealed(directory: Path) -> list[Path]:
    return [path for path in directory.glob("*.jsonl") if b'"op":"trace.seal"' in path.read_bytes()]


def _eventually(look: Callable[[], list[Path]]) -> list[Path]:
    """What `look` finds, as soon as it finds something."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := look()):
        assert time.monotonic() < deadline, "nothing was found in time"
        time.sleep(0.05)
    return found
