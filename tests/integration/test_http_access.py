# SPDX-License-Identifier: MIT
"""Who is answered: hosts, origins, keys, methods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.raw_http import exchange, run_request
from tests.running_server import RunningServer

TOKEN = "t" * 40


@pytest.fixture(scope="module")
def keyed(start_server: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"alice:{'a' * 40}\nbob:{'b' * 40}\n")
    path.chmod(0o600)
    return start_server(AGENTBOX_TOKEN=TOKEN, AGENTBOX_KEY_FILE=str(Path(path)))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "localhost:1@evil.example",
        "[::ffff:203.0.113.9]",
    ],
)
@pytest.mark.parametrize("path", ["/v1/run", "/health", "/openapi.json", "/nothing"])
def test_foreign_host_is_refused_on_every_route(server: RunningServer, host: str, path: str) -> None:
    request = run_request("print(40+2)", host=host, headers="Connection: close\r\n").replace("/v1/run", path)
    assert exchange(server.url, request).statuses == [421]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "LOCALHOST:99", "[::1]"])
def test_loopback_host_is_answered_with_any_port(server: RunningServer, host: str) -> None:
    reply = exchange(server.url, f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
    assert reply.statuses == [200]


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1"])
def test_page_of_another_origin_is_refused_and_gets_no_cors_header(server: RunningServer, origin: str) -> None:
    with server.client() as client:
        for method in ("POST", "OPTIONS"):
            answer = client.request(method, "/v1/run", json={"code": "print(1)"}, headers={"Origin": origin})
            assert answer.status_code == 403
            assert not [name for name in answer.headers if name.startswith("access-control")]


def test_page_of_the_server_itself_may_call(server: RunningServer) -> None:
    with server.client() as client:
        answer = client.post("/v1/run", json={"code": "print(1)"}, headers={"Origin": server.url})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": TOKEN},
        {"X-API-Key": "wrong"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/run", "/v1/snapshots", "/nothing"])
def test_without_a_known_key_nothing_is_served(keyed: RunningServer, headers: dict[str, str], path: str) -> None:
    with keyed.client(headers=headers) as client:
        answer = client.get(path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.json()["hint"]


def test_health_and_reference_need_no_key(keyed: RunningServer) -> None:
    with keyed.client() as client:
        assert [client.get(path).status_code for path in ("/health", "/openapi.json", "/docs", "/redoc")] == [200] * 4


@pytest.mark.parametrize("headers", [{"Authorization": f"Bearer {TOKEN}"}, {"X-API-Key": TOKEN}])
def test_key_is_taken_from_either_header(keyed: RunningServer, headers: dict[str, str]) -> None:
    with keyed.client(headers=headers) as client:
        assert client.post("/v1/run", json={"code": "print(1)"}).json()["stdout"] == "1\n"


def test_snapshots_belong_to_the_key_that_made_them(keyed: RunningServer) -> None:
    with (
        keyed.client(headers={"X-API-Key": "a" * 40}) as alice,
        keyed.client(headers={"X-API-Key": "b" * 40}) as bob,
    ):
        body = {"code": "open('secret','w').write('x')", "snapshot": True}
        snapshot_id = alice.post("/v1/run", json=body).json()["snapshot_id"]
        assert bob.get("/v1/snapshots").json()["snapshots"] == []
        assert bob.get(f"/v1/snapshots/{snapshot_id}").status_code == 404
        assert bob.delete(f"/v1/snapshots/{snapshot_id}").status_code == 404
        assert bob.post("/v1/run", json={"code": "1", "snapshot_id": snapshot_id}).status_code == 400
        assert alice.post("/v1/run", json={"code": "1", "snapshot_id": snapshot_id}).status_code == 200


@pytest.mark.parametrize(("method", "path", "allow"), [
    ("HEAD", "/health", "GET"),
    ("POST", "/health", "GET"),
    ("GET", "/v1/run", "POST"),
    ("PUT", "/v1/snapshots/x", "DELETE, GET"),
])  # fmt: skip
def test_wrong_method_is_405_and_names_the_right_ones(
    server: RunningServer, method: str, path: str, allow: str
) -> None:
    with server.client() as client:
        answer = client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allow)
    if method != "HEAD":
        assert answer.json()["detail"] == "Method Not Allowed"


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/run/", "/health/", "/v1/snapshots/a/b"])
def test_unknown_path_is_404(server: RunningServer, path: str) -> None:
    with server.client() as client:
        answer = client.get(path)
    assert (answer.status_code, answer.json()["detail"]) == (404, "Not Found")


def test_sane_request_id_comes_back_and_an_odd_one_is_replaced(server: RunningServer) -> None:
    with server.client() as client:
        assert client.get("/health", headers={"X-Request-Id": "abc-1.2_3"}).headers["x-request-id"] == "abc-1.2_3"
        for odd in ("a b", "x" * 65, "<script>"):
            assert client.get("/health", headers={"X-Request-Id": odd}).headers["x-request-id"] not in {odd, ""}
