# SPDX-License-Identifier: MIT
"""Every row of docs/reference/compatibility.md is true, and every difference that is checked here is a row."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentbox.isolation.plan import WORKSPACE
from agentbox.sdk.client import AgentboxClient
from tests.running_server import RunningServer

REPOSITORY = Path(__file__).resolve().parents[2]
TABLE = REPOSITORY / "docs" / "reference" / "compatibility.md"

# Rows whose check needs a server of its own, a broken server or a whole file of cases.
ELSEWHERE = {
    "bind": "tests/unit/server/test_access.py",
    "internal-error": "tests/unit/server/test_edge.py",
    "memory-limit": "tests/integration/test_http_run.py",
    "docker-backend": "tests/unit/test_config.py",
    "docker-error": "tests/integration/docker/test_runs.py",
    "allowlist-empty": "tests/integration/test_http_run.py",
    "overload": "tests/integration/test_http_run.py",
    "upgrade": "tests/integration/test_http_protocol.py",
    "sdk-errors": "tests/integration/test_sdk_client.py",
    "sdk-timeout": "tests/integration/test_sdk_client.py",
    "typescript-client": "tests/integration/test_typescript_sdk.py",
    "typescript-errors": "tests/integration/test_typescript_sdk.py",
    "compose": "tests/integration/docker/test_compose.py",
    "compose-docker": "tests/integration/docker/test_compose.py",
}


def rows() -> list[str]:
    return re.findall(r"^\| `([a-z-]+)` \|", TABLE.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as found:
        yield found


def post(client: httpx.Client, code: str = "print(1)", **fields: Any) -> httpx.Response:
    return client.post("/v1/run", json={"code": code, **fields})


def run(client: httpx.Client, code: str, **fields: Any) -> dict[str, Any]:
    answer = post(client, code, **fields)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def host_header(client: httpx.Client) -> None:
    assert client.get("/health", headers={"Host": "evil.example"}).status_code == 421
    assert client.get("/health", headers={"Origin": "https://evil.example"}).status_code == 403


def unknown_fields(client: httpx.Client) -> None:
    answer = post(client, timeout=5)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["type"] == "extra_forbidden"


def code_length(client: httpx.Client) -> None:
    assert run(client, "#" * 100_001 + "\nprint(1)")["stdout"] == "1\n"


def nul_characters(client: httpx.Client) -> None:
    assert post(client, "print(1)\0").status_code == 422


def input_echo(client: httpx.Client) -> None:
    assert len(post(client, language=["x" * 100_000]).text) < 2000


def error_keys(client: httpx.Client) -> None:
    assert list(post(client, language="ruby").json()) == ["detail", "code", "hint", "request_id"]


def timeout_result(client: httpx.Client) -> None:
    answer = post(client, "print(1,flush=True)\nwhile True: pass", limits={"timeout_seconds": 1})
    assert answer.json()["result"]["stdout"] == "1\n"


def output_cap(client: httpx.Client) -> None:
    body = run(client, "print('a'*2000+'b'*2000,end='')", limits={"max_output_bytes": 1024})
    assert body["stdout"] == "a" * 512 + "b" * 512


def binary_output(client: httpx.Client) -> None:
    assert run(client, "import os; os.write(1,b'\\xff')")["stdout_base64"] == "/w=="


def signal_exit_code(client: httpx.Client) -> None:
    body = run(client, "import os; os.abort()")
    assert (body["exit_code"], body["signal"]) == (134, 6)


def oom_killed(client: httpx.Client) -> None:
    assert run(client, "raise MemoryError('simulated')", limits={"memory_mb": 64})["oom_killed"] is False


def limits_applied(client: httpx.Client) -> None:
    assert all(isinstance(value, (int, float)) for value in run(client, "pass")["limits_applied"].values())


def backend_name(client: httpx.Client) -> None:
    assert run(client, "pass")["backend"] == client.get("/health").json()["backend"] == "jail"


def allowlist_network(client: httpx.Client) -> None:
    body = run(client, "pass", egress_allowlist=["Example.com"])
    assert (body["egress_allowlist"], body["network_isolated"]) == (["example.com"], True)
    assert any("network" in warning for warning in body["warnings"])


def environment(client: httpx.Client) -> None:
    names = set(run(client, "import os; print(*os.environ)", env={"MINE": "1"})["stdout"].split())
    assert {"PATH", "HOME", "MINE"} <= names
    assert not [name for name in names if name.startswith("AGENTBOX_STATE")]


def standard_input(client: httpx.Client) -> None:
    assert run(client, "import sys; print(repr(sys.stdin.read()))")["stdout"] == "''\n"


def script_path(client: httpx.Client) -> None:
    assert run(client, "print(__file__)")["stdout"] == f"{WORKSPACE}/main.py\n"


def snapshot_content(client: httpx.Client) -> None:
    code = "import os; os.makedirs('empty'); os.makedirs('sub'); open('sub/main.py','w').write('x')"
    snapshot_id = run(client, code, snapshot=True)["snapshot_id"]
    seen = run(client, "import os; print(sorted(os.listdir()), os.listdir('sub'))", snapshot_id=snapshot_id)
    assert seen["stdout"] == "['empty', 'main.py', 'sub'] ['main.py']\n"


def snapshot_id(client: httpx.Client) -> None:
    assert post(client, snapshot_id="../evil").status_code == 400


def reference_pages(client: httpx.Client) -> None:
    for path in ("/docs", "/redoc"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "<script" not in answer.text


def sdk_result(client: httpx.Client) -> None:
    with AgentboxClient(str(client.base_url)) as sdk:
        found = sdk.run("print(1)")
    assert found["stdout"] == found.stdout == "1\n"


CHECKS: dict[str, Callable[[httpx.Client], None]] = {
    check.__name__.replace("_", "-"): check
    for check in (
        host_header,
        unknown_fields,
        code_length,
        nul_characters,
        input_echo,
        error_keys,
        timeout_result,
        output_cap,
        binary_output,
        signal_exit_code,
        oom_killed,
        limits_applied,
        backend_name,
        allowlist_network,
        environment,
        standard_input,
        script_path,
        snapshot_content,
        snapshot_id,
        reference_pages,
        sdk_result,
    )
}


def test_every_row_has_a_check_and_every_check_a_row() -> None:
    assert sorted(rows()) == sorted([*CHECKS, *ELSEWHERE])


def test_checks_that_stand_elsewhere_stand_there() -> None:
    assert [path for path in ELSEWHERE.values() if not (REPOSITORY / path).is_file()] == []


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
def test_difference_is_as_the_table_says(client: httpx.Client, check: Callable[[httpx.Client], None]) -> None:
    check(client)
