# SPDX-License-Identifier: MIT
"""POST /v1/run as a client of the first API, and one that uses everything since, sees it."""

from __future__ import annotations

import base64
import concurrent.futures
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.running_server import RunningServer

FIRST_KEYS = [
    "stdout",
    "stderr",
    "exit_code",
    "duration_ms",
    "language",
    "backend",
    "snapshot_id",
    "limits_applied",
    "oom_killed",
    "network_isolated",
    "egress_allowlist",
]
NEW_KEYS = [
    "run_id",
    "outcome",
    "signal",
    "stdout_bytes",
    "stderr_bytes",
    "stdout_truncated",
    "stderr_truncated",
    "stdout_base64",
    "stderr_base64",
    "files",
    "enforcement",
    "warnings",
    "timings",
    "usage",
    "denials",
    "trace",
    "egress",
]


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as found:
        yield found


def run(client: httpx.Client, code: str, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/run", json={"code": code, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def problem(client: httpx.Client, status: int, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/run", json={"code": "print(1)", **fields})
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    assert {"detail", "code", "hint", "request_id"} <= body.keys()
    assert answer.headers["x-request-id"] == body["request_id"]
    return body


def test_answer_has_the_keys_of_the_first_api_in_their_order_and_then_the_new_ones(client: httpx.Client) -> None:
    body = run(client, "print(sum(range(10)))")
    assert list(body) == FIRST_KEYS + NEW_KEYS
    assert (body["stdout"], body["exit_code"], body["outcome"]) == ("45\n", 0, "exited")
    assert isinstance(body["limits_applied"]["timeout_seconds"], int)


@pytest.mark.parametrize(
    ("language", "code", "stdout"),
    [
        ("python", "print(6*7)", "42\n"),
        ("Python", "print(6*7)", "42\n"),
        ("javascript", "console.log(6*7)", "42\n"),
        ("node", "console.log(6*7)", "42\n"),
        ("bash", "echo $((6*7))", "42\n"),
    ],
)
def test_every_language_runs(client: httpx.Client, language: str, code: str, stdout: str) -> None:
    body = run(client, code, language=language)
    assert (body["stdout"], body["language"]) == (stdout, language.lower())


@pytest.mark.parametrize(("code", "exit_code"), [("import sys; sys.exit(7)", 7), ("1/0", 1), ("(", 1)])
def test_program_that_fails_is_a_result(client: httpx.Client, code: str, exit_code: int) -> None:
    assert run(client, code)["exit_code"] == exit_code


def test_signal_is_128_and_its_number(client: httpx.Client) -> None:
    body = run(client, "import os; os.kill(os.getpid(), 9)")
    assert (body["exit_code"], body["signal"]) == (137, 9)


def test_timeout_answers_408_with_what_the_program_did_until_then(client: httpx.Client) -> None:
    answer = client.post(
        "/v1/run",
        json={"code": "print('before', flush=True)\nimport time; time.sleep(60)", "limits": {"timeout_seconds": 1}},
    )
    body = answer.json()
    assert (answer.status_code, body["detail"], body["code"]) == (408, "Execution timed out", "timed_out")
    assert (body["result"]["stdout"], body["result"]["outcome"]) == ("before\n", "timed_out")


def test_input_files_environment_and_arguments_reach_the_program(client: httpx.Client) -> None:
    code = (
        "import os,sys\n"
        "print(sys.stdin.buffer.read(), open('a/in.txt').read(), open('b.bin','rb').read(),"
        " os.environ['GREETING'], sys.argv[1:])"
    )
    body = run(
        client,
        code,
        stdin={"base64": base64.b64encode(b"\x00\xff").decode()},
        files={"a/in.txt": "text", "b.bin": {"base64": "/w=="}},
        env={"GREETING": "hello"},
        args=["-x", "two words"],
    )
    assert body["stdout"] == "b'\\x00\\xff' text b'\\xff' hello ['-x', 'two words']\n"


def test_files_come_back_as_base64_with_their_size(client: httpx.Client) -> None:
    body = run(client, "open('out.bin','wb').write(b'\\xff'*3); open('no.txt','w').write('x')", return_files=["*.bin"])
    assert body["files"] == {"out.bin": {"base64": "////", "bytes": 3}}


def test_a_pattern_for_everything_does_not_bring_the_code_back(client: httpx.Client) -> None:
    body = run(client, "open('mine.txt', 'w').write('x')", return_files=["**"])
    assert list(body["files"]) == ["mine.txt"]


def test_output_that_is_not_text_survives_as_base64(client: httpx.Client) -> None:
    body = run(client, "import sys; sys.stdout.buffer.write(b'a\\xffb')")
    assert (body["stdout"], base64.b64decode(body["stdout_base64"])) == ("a\ufffdb", b"a\xffb")
    assert body["stderr_base64"] is None


def test_output_over_the_cap_keeps_head_and_tail_and_counts(client: httpx.Client) -> None:
    body = run(client, "print('a'*5000+'b'*5000,end='')", limits={"max_output_bytes": 1024})
    assert body["stdout"] == "a" * 512 + "b" * 512
    assert (body["stdout_bytes"], body["stdout_truncated"], body["stderr_truncated"]) == (10_000, True, False)


def test_limit_above_the_ceiling_is_lowered_shown_and_warned_about(start_server: Callable[..., RunningServer]) -> None:
    with start_server(AGENTBOX_MAX_MEMORY_MB="512", AGENTBOX_DEFAULT_MEMORY_MB="128").client() as client:
        body = run(client, "pass", limits={"memory_mb": 4096})
    assert body["limits_applied"]["memory_mb"] == 512
    assert any("memory_mb" in warning for warning in body["warnings"])


@pytest.mark.parametrize("kibibytes", [150, 3 << 10])
def test_large_code_runs_since_it_never_travels_in_arguments(client: httpx.Client, kibibytes: int) -> None:
    size = kibibytes << 10
    assert run(client, f"x = '{'a' * size}'\nprint(len(x))")["stdout"] == f"{size}\n"


def test_code_over_the_limit_is_told_the_limit(client: httpx.Client) -> None:
    answer = client.post("/v1/run", json={"code": "x" * ((4 << 20) + 1)})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["ctx"]["max_length"] == 4 << 20


def test_unknown_language_is_named_as_it_was_spelled(client: httpx.Client) -> None:
    assert problem(client, 400, language="Ruby")["detail"] == "Unsupported language: Ruby"


def test_unknown_backend_is_refused(client: httpx.Client) -> None:
    assert problem(client, 400, backend="docker")["code"] == "unknown_backend"


def test_unknown_snapshot_is_a_bad_request(client: httpx.Client) -> None:
    snapshot_id = "0" * 32
    assert problem(client, 400, snapshot_id=snapshot_id)["detail"] == f"Unknown snapshot: {snapshot_id}"


@pytest.mark.parametrize(
    "snapshot_id",
    ["../evil", "/etc/passwd", "..", ".", "a/../../b", "%2e%2e%2fevil", "evil\x00", "evil.tar.gz", "$(id)", "-rf", "*"],
)
def test_snapshot_id_is_a_token_and_no_path(client: httpx.Client, snapshot_id: str) -> None:
    assert problem(client, 400, snapshot_id=snapshot_id)["code"] == "not_found"


def test_snapshot_carries_files_to_a_later_run(client: httpx.Client) -> None:
    first = run(client, "open('memo.txt','w').write('kept')", snapshot=True)
    second = run(client, "console.log(require('fs').readFileSync('memo.txt','utf8'))", language="node",
                 snapshot_id=first["snapshot_id"])  # fmt: skip
    assert second["stdout"] == "kept\n"


def test_snapshots_are_listed_described_and_deleted(client: httpx.Client) -> None:
    snapshot_id = run(client, "open('a','w').write('x')", snapshot=True)["snapshot_id"]
    listed = client.get("/v1/snapshots").json()["snapshots"]
    assert snapshot_id in [info["snapshot_id"] for info in listed]
    info = client.get(f"/v1/snapshots/{snapshot_id}").json()
    assert info.keys() == {"snapshot_id", "created_at", "packed_bytes", "unpacked_bytes", "entries"}
    assert client.delete(f"/v1/snapshots/{snapshot_id}").status_code == 204
    assert client.get(f"/v1/snapshots/{snapshot_id}").status_code == 404
    assert client.delete(f"/v1/snapshots/{snapshot_id}").status_code == 404


@pytest.mark.parametrize("entry", ["*.example.com", "http://x", "[::1]", "10.0.0.0/8", "", " ", "x:0", "x:99999"])
def test_allowlist_entry_that_is_no_host_is_named(client: httpx.Client, entry: str) -> None:
    assert problem(client, 400, egress_allowlist=[entry])["detail"] == f"Invalid egress allowlist entry: {entry!r}"


@pytest.mark.parametrize("value", ["", "example.com", {}, [None], 1])
def test_allowlist_that_is_no_list_is_refused_and_never_split(client: httpx.Client, value: Any) -> None:
    assert client.post("/v1/run", json={"code": "print(1)", "egress_allowlist": value}).status_code == 422


def test_empty_allowlist_of_the_operator_denies_every_host(start_server: Callable[..., RunningServer]) -> None:
    with start_server(AGENTBOX_EGRESS_ALLOWLIST="").client() as client:
        detail = problem(client, 400, egress_allowlist=["evil.com:443", "b.org"])["detail"]
        assert run(client, "print(1)")["egress_allowlist"] == []
    assert detail == "egress_allowlist entries not permitted by AGENTBOX_EGRESS_ALLOWLIST: evil.com, b.org"


def test_requests_at_once_never_see_each_other(client: httpx.Client) -> None:
    def one(nonce: str) -> tuple[str, dict[str, Any]]:
        code = f"import os\nopen('n','a').write('{nonce}')\nprint(open('n').read(), os.listdir('.'))"
        return nonce, run(client, code)

    with concurrent.futures.ThreadPoolExecutor(12) as threads:
        for nonce, body in threads.map(one, [uuid.uuid4().hex for _ in range(24)]):
            assert body["stdout"].split()[0] == nonce


def test_full_queue_answers_429_and_says_when_to_come_back(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(AGENTBOX_MAX_CONCURRENT_RUNS="1", AGENTBOX_MAX_QUEUED_RUNS="0")
    with server.client() as client, server.client() as other:
        with client.stream(
            "POST",
            "/v1/run",
            json={"code": "print(1, flush=True)\nimport time; time.sleep(60)"},
            headers={"Accept": "text/event-stream"},
        ) as going:
            # Kept: a dropped iterator ends the stream, and with it the run.
            lines = going.iter_lines()
            assert next(lines) == "event: stdout"
            answer = other.post("/v1/run", json={"code": "print(2)"})
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    "raw",
    [
        b'{"code":"print(1)","limits":{"timeout_seconds":%s}}' % value
        for value in (b"0", b"-1", b"NaN", b"Infinity", b"1e308", b"9" * 20, b'"abc"', b"[]", b"0.0001")
    ],
)
def test_limit_that_means_nothing_is_refused(client: httpx.Client, raw: bytes) -> None:
    answer = client.post("/v1/run", content=raw, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422


def test_deep_json_is_refused_and_the_server_goes_on(client: httpx.Client) -> None:
    raw = b'{"code":"print(1)","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    answer = client.post("/v1/run", content=raw, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert client.get("/health").json()["status"] == "ok"


def test_errors_show_no_traceback_path_or_control_character(client: httpx.Client) -> None:
    for body in ({"code": 5}, {"code": "1", "snapshot_id": "x\r\nFORGED"}, {"code": "1", "language": "\x1b[31mF\n"}):
        text = client.post("/v1/run", json=body).text
        assert "Traceback" not in text
        assert "site-packages" not in text
        assert all(character.isprintable() for character in text)


def test_log_lines_cannot_be_forged(server: RunningServer, client: httpx.Client) -> None:
    client.post("/v1/run", json={"code": "1", "snapshot_id": "x\r\nFORGED", "language": "python\nFORGED"})
    client.get("/x%0aFORGED")
    client.get("/health", headers={"X-Request-Id": "sane-id"})
    assert client.get("/health").status_code == 200
    assert not any(line.startswith("FORGED") for line in server.lines)


def test_readme_lines_of_the_first_api_answer(client: httpx.Client) -> None:
    assert client.get("/health").json().keys() == {"status", "version", "backend", "runs"}
    assert json.loads(client.get("/openapi.json").text)["openapi"].startswith("3.1")
    body = run(client, "x = bytearray(10**9)", limits={"memory_mb": 64, "timeout_seconds": 5})
    assert body["exit_code"] != 0
    assert run(client, "print(1)", egress_allowlist=["example.com"])["egress_allowlist"] == ["example.com"]
