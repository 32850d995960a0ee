# SPDX-License-Identifier: MIT
"""Bursts against a real server: what is accepted ends with its own output, the rest is told when to come back."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentbox.sdk.client import AgentboxClient, AgentboxHTTPError
from tests.integration.raw_http import connect, exchange, read_all, run_request
from tests.running_server import RunningServer

HOLD = "print('at work', flush=True)\nimport time; time.sleep(120)"
KEYS = {"flood": "f" * 40, "single": "s" * 40}
BURST = 500


def runs_of(server: RunningServer, key: str | None = None) -> dict[str, int]:
    with server.client() as client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        found: dict[str, int] = client.get("/health", headers=headers).json()["runs"]
        return found


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@contextmanager
def held(server: RunningServer, **options: Any) -> Iterator[None]:
    """A run that keeps its place for as long as the block takes."""
    with (
        server.client(**options) as client,
        client.stream("POST", "/v1/run", json={"code": HOLD}, headers={"Accept": "text/event-stream"}) as answer,
    ):
        lines = answer.iter_lines()
        while next(lines) != "event: stdout":
            pass
        yield


def traces_of(server: RunningServer) -> list[Path]:
    return list((server.state_dir / "traces").rglob("*.jsonl"))


@pytest.fixture
def keyed(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "keys"
    path.write_text("".join(f"{name}:{key}\n" for name, key in KEYS.items()))
    path.chmod(0o600)
    return {"AGENTBOX_KEY_FILE": str(path)}


async def burst(server: RunningServer, count: int, body: Callable[[int], dict[str, Any]]) -> list[httpx.Response]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=server.url, timeout=300.0, limits=limits) as client:
        return await asyncio.gather(*(client.post("/v1/run", json=body(number)) for number in range(count)))


def test_of_500_runs_at_once_each_accepted_one_ends_once_with_its_own_output(
    start_server: Callable[..., RunningServer],
) -> None:
    server = start_server(AGENTBOX_MAX_CONCURRENT_RUNS="8", AGENTBOX_MAX_QUEUED_RUNS="200", AGENTBOX_TRACE_RUNS="all")
    words = [uuid.uuid4().hex for _ in range(BURST)]
    answers = asyncio.run(burst(server, BURST, lambda number: {"code": f"print('{words[number]}')"}))
    statuses = Counter(answer.status_code for answer in answers)
    assert statuses.keys() == {200, 429}
    assert statuses[200] >= 208
    for word, answer in zip(words, answers, strict=True):
        found = answer.json()
        if answer.status_code == 200:
            assert (found["stdout"], found["exit_code"]) == (word + "\n", 0)
        else:
            assert (found["code"], found["retry_after_seconds"]) == ("overloaded", int(answer.headers["retry-after"]))
            assert found["hint"]
    assert len({answer.json()["run_id"] for answer in answers if answer.status_code == 200}) == statuses[200]
    # The server's own records: one run for each answer, and none that nobody was told of.
    assert len(traces_of(server)) == statuses[200]
    assert any(answer.json()["timings"]["queued_ms"] > 0 for answer in answers if answer.status_code == 200)
    assert runs_of(server) == {"working": 0, "waiting": 0}


def test_500_runs_on_a_few_connections_all_end_with_their_own_output(
    start_server: Callable[..., RunningServer],
) -> None:
    server = start_server(AGENTBOX_MAX_CONCURRENT_RUNS="4")

    async def kept_alive() -> list[tuple[int, str]]:
        limits = httpx.Limits(max_connections=25, max_keepalive_connections=25)
        async with httpx.AsyncClient(base_url=server.url, timeout=300.0, limits=limits) as client:

            async def one(number: int) -> tuple[int, str]:
                answer = await client.post("/v1/run", json={"code": f"print({number})"})
                return answer.status_code, answer.json()["stdout"]

            return await asyncio.gather(*(one(number) for number in range(BURST)))

    assert asyncio.run(kept_alive()) == [(200, f"{number}\n") for number in range(BURST)]


def test_a_flood_of_one_key_does_not_make_another_key_wait_for_it(
    start_server: Callable[..., RunningServer], keyed: dict[str, str]
) -> None:
    server = start_server(AGENTBOX_MAX_CONCURRENT_RUNS="1", AGENTBOX_MAX_QUEUED_RUNS="60", **keyed)
    order: list[str] = []

    async def all_of_them() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=300.0, limits=httpx.Limits()) as client:

            async def one(owner: str) -> httpx.Response:
                headers = {"Authorization": f"Bearer {KEYS[owner]}"}
                answer = await client.post("/v1/run", json={"code": "print(1)"}, headers=headers)
                order.append(owner)
                return answer

            async def waits(owner: str, count: int) -> None:
                while runs_of(server, KEYS[owner])["waiting"] < count:
                    await asyncio.sleep(0.01)

            with held(server, headers={"X-API-Key": KEYS["flood"]}):
                flood = [asyncio.create_task(one("flood")) for _ in range(59)]
                await waits("flood", 59)
                single = asyncio.create_task(one("single"))
                await waits("single", 1)
            assert (await single).status_code == 200
            # Answers may cross on their way; they were not all ahead of it.
            assert order.index("single") < 30
            await asyncio.gather(*flood)

    asyncio.run(all_of_them())
    assert Counter(order) == {"flood": 59, "single": 1}


def test_a_full_queue_still_takes_another_key_in(
    start_server: Callable[..., RunningServer], keyed: dict[str, str]
) -> None:
    server = start_server(AGENTBOX_MAX_CONCURRENT_RUNS="1", AGENTBOX_MAX_QUEUED_RUNS="3", **keyed)
    flood, single = ({"X-API-Key": KEYS[name]} for name in ("flood", "single"))
    with held(server, headers=flood):
        peers = [connect(server.url, 60) for _ in range(4)]
        for peer, key in zip(peers, [flood] * 3 + [single], strict=True):
            before = runs_of(server, KEYS["flood"])
            peer.sendall(run_request("print(2)", headers=f"X-API-Key: {key['X-API-Key']}\r\n").encode())
            if key is flood:
                until(lambda before=before: runs_of(server, KEYS["flood"]) != before)  # type: ignore[misc]
        # The flood's newest made room.
        assert b"429" in peers[2].recv(65536)
        assert runs_of(server, KEYS["flood"]) == {"working": 1, "waiting": 3}
    for peer in (peers[0], peers[1], peers[3]):
        assert b'"stdout":"2\\n"' in peer.recv(65536)
    for peer in peers:
        peer.close()


def test_health_traces_and_the_key_answer_while_the_queue_is_full(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(AGENTBOX_MAX_CONCURRENT_RUNS="1", AGENTBOX_MAX_QUEUED_RUNS="1", AGENTBOX_TRACE_RUNS="all")
    with server.client() as client:
        run_id = client.post("/v1/run", json={"code": "print(1)"}).json()["run_id"]
        with held(server), connect(server.url) as waiting:
            waiting.sendall(run_request("print(2)").encode())
            until(lambda: runs_of(server)["waiting"] == 1)
            assert client.post("/v1/run", json={"code": "print(3)"}).status_code == 429
            assert client.get("/health").json()["runs"] == {"working": 1, "waiting": 1}
            assert client.get(f"/v1/runs/{run_id}/trace").status_code == 200
            assert client.get("/v1/key").status_code == 200
            assert client.get("/v1/snapshots").status_code == 200


def test_a_refusal_comes_before_the_body_is_read_and_the_connection_stays(
    start_server: Callable[..., RunningServer],
) -> None:
    server = start_server(AGENTBOX_MAX_CONCURRENT_RUNS="1", AGENTBOX_MAX_QUEUED_RUNS="0")
    with held(server), connect(server.url) as peer:
        for _ in range(2):
            peer.sendall(run_request("print(1)").encode())
            assert peer.recv(65536).startswith(b"HTTP/1.1 429 ")
        peer.sendall(b"POST /v1/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{")
        assert peer.recv(65536).startswith(b"HTTP/1.1 429 ")


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_a_waiting_run_whose_client_goes_away_leaves_the_queue_and_never_runs(
    start_server: Callable[..., RunningServer], accept: str
) -> None:
    server = start_server(AGENTBOX_MAX_CONCURRENT_RUNS="1", AGENTBOX_TRACE_RUNS="all")
    with held(server):
        with connect(server.url) as peer:
            peer.sendall(run_request("print('never')", headers=f"Accept: {accept}\r\n").encode())
            until(lambda: runs_of(server)["waiting"] == 1)
        until(lambda: runs_of(server)["waiting"] == 0)
    until(lambda: runs_of(server)["working"] == 0)
    assert len(traces_of(server)) == 1


def test_a_run_that_waits_too_long_is_told_so_and_never_runs(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(
        AGENTBOX_MAX_CONCURRENT_RUNS="1", AGENTBOX_QUEUE_TIMEOUT_SECONDS="0.2", AGENTBOX_TRACE_RUNS="all"
    )
    with held(server), server.client() as client:
        answer = client.post("/v1/run", json={"code": "print(1)"})
        assert (answer.status_code, answer.json()["code"]) == (429, "queue_timeout")
        assert int(answer.headers["retry-after"]) >= 1
        streamed = client.post("/v1/run", json={"code": "print(1)"}, headers={"Accept": "text/event-stream"}).text
    assert [line for line in streamed.split("\n") if line.startswith("event: ")] == ["event: queued", "event: error"]
    until(lambda: runs_of(server)["working"] == 0)
    assert len(traces_of(server)) == 1


def test_runs_of_one_key_are_bounded_on_their_own(
    start_server: Callable[..., RunningServer], keyed: dict[str, str]
) -> None:
    server = start_server(AGENTBOX_MAX_CONCURRENT_RUNS="1", AGENTBOX_QUEUE_RUNS_PER_KEY="1", **keyed)
    flood, single = ({"X-API-Key": KEYS[name]} for name in ("flood", "single"))
    with held(server, headers=flood), connect(server.url) as first, connect(server.url) as second:
        first.sendall(run_request("print(1)", headers=f"X-API-Key: {flood['X-API-Key']}\r\n").encode())
        until(lambda: runs_of(server, KEYS["flood"])["waiting"] == 1)
        with server.client(headers=flood) as client:
            refused = client.post("/v1/run", json={"code": "print(1)"})
            assert refused.status_code == 429
            assert "AGENTBOX_QUEUE_RUNS_PER_KEY" in refused.json()["hint"]
        second.sendall(run_request("print(1)", headers=f"X-API-Key: {single['X-API-Key']}\r\n").encode())
        until(lambda: runs_of(server, KEYS["flood"])["waiting"] == 2)


def test_a_stream_that_waits_says_so_first_and_its_result_says_how_long(
    start_server: Callable[..., RunningServer],
) -> None:
    server = start_server(AGENTBOX_MAX_CONCURRENT_RUNS="1")
    events: list[tuple[str, dict[str, Any]]] = []

    def follow() -> None:
        with server.client() as client:
            text = client.post("/v1/run", json={"code": "print(1)"}, headers={"Accept": "text/event-stream"}).text
        for block in text.split("\n\n"):
            if block.startswith("event: "):
                name, _, data = block.removeprefix("event: ").partition("\ndata: ")
                events.append((name, json.loads(data)))

    with held(server):
        follower = threading.Thread(target=follow)
        follower.start()
        until(lambda: runs_of(server)["waiting"] == 1)
    follower.join(60)
    assert events[0] == ("queued", {"waiting": 1})
    assert list(dict.fromkeys(name for name, _ in events)) == ["queued", "stdout", "result"]
    assert events[-1][1]["timings"]["queued_ms"] > 0


def test_stopping_answers_runs_at_work_and_runs_that_wait(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(AGENTBOX_MAX_CONCURRENT_RUNS="1", AGENTBOX_TRACE_RUNS="all")
    peers = [connect(server.url, 60) for _ in range(5)]
    for peer in peers:
        peer.sendall(run_request(HOLD).encode())
    until(lambda: runs_of(server) == {"working": 1, "waiting": 4})
    stopped = threading.Thread(target=server.stop, args=(signal.SIGTERM,))
    stopped.start()
    assert [read_all(peer).statuses for peer in peers] == [[503]] * 5
    stopped.join(60)
    assert server.process.returncode == 0
    assert len(traces_of(server)) == 1


def test_how_busy_a_server_is_concerns_only_callers_with_a_key(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(AGENTBOX_TOKEN="k" * 40)
    head = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    assert b"runs" not in exchange(server.url, head + "\r\n").data
    assert b'"runs":{"working":0,"waiting":0}' in exchange(server.url, f"{head}X-API-Key: {'k' * 40}\r\n\r\n").data


def test_client_raises_the_time_to_come_back_and_comes_back_when_asked_to(
    start_server: Callable[..., RunningServer],
) -> None:
    server = start_server(AGENTBOX_MAX_CONCURRENT_RUNS="1", AGENTBOX_MAX_QUEUED_RUNS="0")
    with AgentboxClient(server.url) as hasty, AgentboxClient(server.url, retries=100) as patient:
        found: list[str] = []
        follower = threading.Thread(target=lambda: found.append(patient.run("print('at last')").stdout))
        with held(server):
            with pytest.raises(AgentboxHTTPError) as raised:
                hasty.run("print(1)")
            assert raised.value.status == 429
            assert (raised.value.retry_after_seconds or 0) >= 1
            with pytest.raises(AgentboxHTTPError, match="429"):
                list(hasty.stream("print(1)"))
            follower.start()
            until(lambda: any("status=429" in line for line in server.lines[-1:]) or bool(found))
        follower.join(120)
    assert found == ["at last\n"]
