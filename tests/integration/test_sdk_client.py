# SPDX-License-Identifier: MIT
"""The Python clients against a real server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from agentbox.sdk.client import AgentboxClient, AgentboxHTTPError, AsyncAgentboxClient
from tests.running_server import RunningServer


@pytest.fixture
def client(server: RunningServer) -> Iterator[AgentboxClient]:
    with AgentboxClient(server.url + "/") as found:
        yield found


def test_base_url_has_no_slash_at_its_end(client: AgentboxClient, server: RunningServer) -> None:
    assert client.base_url == server.url


def test_run_is_a_dict_and_has_attributes(client: AgentboxClient) -> None:
    found = client.run("print('hello')")
    assert found["stdout"] == found.stdout == "hello\n"
    assert isinstance(found, dict)
    assert json.loads(json.dumps(found)) == found
    assert found.ok


def test_arguments_keep_their_old_positions(client: AgentboxClient) -> None:
    first = client.run("open('memo','w').write('kept'); print(1)", "python", 5, True)
    second = client.run("print(open('memo').read())", "python", 5, False, first["snapshot_id"], 64, [])
    assert second["stdout"] == "kept\n"
    assert second["limits_applied"]["memory_mb"] == 64


def test_new_fields_travel(client: AgentboxClient) -> None:
    found = client.run(
        "import sys,os; print(sys.stdin.read(), open('d/f').read(), sys.argv[1], os.environ['A'])\n"
        "open('o.bin','wb').write(b'\\xff')",
        stdin=b"in",
        files={"d/f": "file"},
        args=["arg"],
        env={"A": "env"},
        cpus=0.5,
        pids=32,
        disk_mb=16,
        max_output_bytes=4096,
        backend="jail",
        return_files=["*.bin"],
    )
    assert found.stdout == "in file arg env\n"
    assert found.file_data("o.bin") == b"\xff"
    assert (found.limits_applied["cpus"], found.limits_applied["pids"]) == (0.5, 32)


def test_output_data_is_exact(client: AgentboxClient) -> None:
    assert client.run("import os; os.write(1, b'a\\xff')").stdout_data() == b"a\xff"
    assert client.run("print('é')").stdout_data() == "é\n".encode()


def test_refusal_is_a_runtime_error_with_the_old_text(client: AgentboxClient) -> None:
    with pytest.raises(RuntimeError, match=r"^agentbox HTTP 400: Unsupported language: ruby$") as caught:
        client.run("1", language="ruby")
    assert isinstance(caught.value, AgentboxHTTPError)
    assert (caught.value.status, caught.value.code) == (400, "unsupported_language")
    assert caught.value.hint


def test_timeout_holds_the_partial_result(client: AgentboxClient) -> None:
    with pytest.raises(AgentboxHTTPError, match="agentbox HTTP 408: Execution timed out") as caught:
        client.run("print('so far', flush=True)\nimport time; time.sleep(60)", timeout_seconds=1)
    assert caught.value.result is not None
    assert caught.value.result["stdout"] == "so far\n"


def test_client_waits_longer_than_the_longest_run(client: AgentboxClient) -> None:
    assert (client._client.timeout.read or 0) > 300


def test_server_that_is_not_there_is_an_httpx_error() -> None:
    with AgentboxClient("http://127.0.0.1:9") as client, pytest.raises(httpx.ConnectError):
        client.health()


def test_stream_yields_output_and_then_the_result(client: AgentboxClient) -> None:
    found = list(client.stream("import os\nprint('a')\nos.write(2, b'\\xff')"))
    assert b"".join(event.data for event in found if event.kind == "stdout") == b"a\n"
    assert b"".join(event.data for event in found if event.kind == "stderr") == b"\xff"
    assert found[-1].result is not None
    assert found[-1].result.exit_code == 0


def test_separators_that_are_no_line_feeds_stay_inside_an_event(client: AgentboxClient) -> None:
    text = "a\u2028b\x85c\x0bd\u2029"
    found = list(client.stream(f"import sys; sys.stdout.write({text!r})"))
    assert "".join(event.text for event in found if event.kind == "stdout") == text
    assert found[-1].result is not None
    assert found[-1].result.stdout == text


def test_stream_that_is_refused_raises(client: AgentboxClient) -> None:
    with pytest.raises(AgentboxHTTPError, match="422"):
        list(client.stream(""))


def test_snapshots_are_listed_and_deleted(client: AgentboxClient) -> None:
    snapshot_id = client.run("open('x','w').write('x')", snapshot=True).snapshot_id
    assert snapshot_id is not None
    assert client.get_snapshot(snapshot_id) in client.snapshots()
    client.delete_snapshot(snapshot_id)
    with pytest.raises(AgentboxHTTPError, match="404"):
        client.get_snapshot(snapshot_id)


@pytest.mark.parametrize("snapshot_id", ["../../health", "", "a/b", "a?b"])
def test_snapshot_id_cannot_become_another_path(client: AgentboxClient, snapshot_id: str) -> None:
    with pytest.raises(ValueError, match="not a snapshot id"):
        client.get_snapshot(snapshot_id)


def test_key_is_sent(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(AGENTBOX_TOKEN="k" * 40)
    with AgentboxClient(server.url, api_key="k" * 40) as client:
        assert client.run("print(1)").stdout == "1\n"
    with AgentboxClient(server.url) as client, pytest.raises(AgentboxHTTPError, match="401"):
        client.run("print(1)")


def test_post_can_be_replaced_as_before(client: AgentboxClient, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def post(url: str, json: dict[str, Any]) -> httpx.Response:
        seen.update(url=url, json=json)
        return httpx.Response(200, json={"stdout": "fake"})

    monkeypatch.setattr(client._client, "post", post)
    assert client.run("x", timeout_seconds=200, memory_mb=64, snapshot=False, snapshot_id="")["stdout"] == "fake"
    limits = {"timeout_seconds": 200, "memory_mb": 64}
    assert seen == {"url": "/v1/run", "json": {"code": "x", "language": "python", "limits": limits}}


async def test_asynchronous_client_does_the_same(server: RunningServer) -> None:
    async with AsyncAgentboxClient(server.url) as client:
        assert (await client.health())["status"] == "ok"
        assert (await client.run("print(1)", timeout_seconds=5)).stdout == "1\n"
        found = [event async for event in client.stream("print('a')")]
        assert found[-1].result is not None
        snapshot_id = (await client.run("open('x','w')", snapshot=True)).snapshot_id
        assert snapshot_id in [info["snapshot_id"] for info in await client.snapshots()]
        assert (await client.get_snapshot(str(snapshot_id)))["snapshot_id"] == snapshot_id
        await client.delete_snapshot(str(snapshot_id))
        with pytest.raises(AgentboxHTTPError, match="408"):
            await client.run("import time; time.sleep(60)", timeout_seconds=1)


FIRST_CLIENT = """
import json, sys
from agentbox.sdk.client import AgentboxClient
client = AgentboxClient(sys.argv[1])
found = {"health": client.health()}
found["hello"] = client.run("print('hello')")
found["node"] = client.run("console.log('hello')", language="javascript", timeout_seconds=5)
found["memory"] = client.run("x = bytearray(10**9)", memory_mb=64)
snap = client.run("open('memo.txt','w').write('kept')", snapshot=True)
found["kept"] = client.run("print(open('memo.txt').read())", snapshot_id=snap["snapshot_id"])
found["allowlist"] = client.run("print(1)", egress_allowlist=["example.com"])
for name, call in {
    "timeout": lambda: client.run("import time; time.sleep(9)", timeout_seconds=1),
    "language": lambda: client.run("1", language="ruby"),
    "snapshot": lambda: client.run("1", snapshot_id="0" * 32),
}.items():
    try:
        call()
    except RuntimeError as error:
        found[name] = str(error)
client.close()
print(json.dumps(found))
"""


def test_client_of_the_first_api_works_unchanged(server: RunningServer, s1_python: str) -> None:
    ran = subprocess.run(
        [s1_python, "-c", FIRST_CLIENT, server.url], capture_output=True, text=True, timeout=120, check=False, cwd="/"
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["health"]["status"] == "ok"
    assert found["hello"]["stdout"] == found["node"]["stdout"] == "hello\n"
    assert found["memory"]["exit_code"] != 0
    assert found["kept"]["stdout"] == "kept\n"
    assert found["allowlist"]["egress_allowlist"] == ["example.com"]
    assert found["timeout"] == "agentbox HTTP 408: Execution timed out"
    assert found["language"] == "agentbox HTTP 400: Unsupported language: ruby"
    assert found["snapshot"] == f"agentbox HTTP 400: Unknown snapshot: {'0' * 32}"
