# SPDX-License-Identifier: MIT
"""POST /v1/run with Accept: text/event-stream."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.running_server import RunningServer

STREAM = {"Accept": "text/event-stream"}


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client(headers=STREAM) as found:
        yield found


def events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    kind = ""
    for line in lines:
        if line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("data: "):
            yield kind, json.loads(line[6:])


def all_events(client: httpx.Client, code: str, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    with client.stream("POST", "/v1/run", json={"code": code, **fields}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        return list(events(answer.iter_lines()))


def test_output_comes_while_the_program_still_runs(client: httpx.Client) -> None:
    code = "print('first', flush=True)\nimport time\nwhile True: time.sleep(1)"
    with client.stream("POST", "/v1/run", json={"code": code}) as answer:
        seen = ""
        for kind, data in events(answer.iter_lines()):
            assert kind == "stdout"
            seen += data["text"]
            if seen == "first\n":
                break
    assert seen == "first\n"


def test_result_is_the_last_event_and_the_same_as_without_a_stream(client: httpx.Client) -> None:
    found = all_events(client, "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)")
    assert {kind for kind, _ in found[:-1]} == {"stdout", "stderr"}
    assert sorted(data["seq"] for _, data in found[:-1]) == list(range(1, len(found)))
    kind, result = found[-1]
    assert (kind, result["exit_code"], result["stdout"], result["stderr"]) == ("result", 3, "out\n", "err\n")


def test_timeout_is_a_result(client: httpx.Client) -> None:
    found = all_events(client, "import time; time.sleep(60)", limits={"timeout_seconds": 1})
    assert [(kind, data["outcome"]) for kind, data in found] == [("result", "timed_out")]


def test_bytes_that_are_not_text_come_as_base64_and_split_characters_whole(client: httpx.Client) -> None:
    code = (
        "import os,time\n"
        "os.write(1,b'\\xe2'); time.sleep(.2); os.write(1,b'\\x82'); time.sleep(.2); os.write(1,b'\\xac')\n"
        "os.write(2,b'\\xff')"
    )
    found = all_events(client, code)[:-1]
    assert "".join(data["text"] for kind, data in found if kind == "stdout") == "€"
    assert [base64.b64decode(data["b64"]) for kind, data in found if kind == "stderr"] == [b"\xff"]


def test_stream_is_bounded_by_the_output_limit_and_the_rest_is_counted(client: httpx.Client) -> None:
    found = all_events(client, "print('x' * 1000000, end='')", limits={"max_output_bytes": 4096})
    assert sum(len(data["text"]) for kind, data in found if kind == "stdout") == 4096
    assert found[-1][1]["stdout_bytes"] == 1_000_000


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"language": "ruby"}, 400), ({"snapshot_id": "0" * 32}, 400), ({"backend": "none"}, 400), ({"colour": 1}, 422)],
)
def test_request_that_cannot_run_has_its_own_status_instead_of_a_stream(
    client: httpx.Client, fields: dict[str, Any], status: int
) -> None:
    answer = client.post("/v1/run", json={"code": "print(1)", **fields})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
