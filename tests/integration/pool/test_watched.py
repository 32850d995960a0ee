# SPDX-License-Identifier: MIT
"""A run with a policy or a trace in a warm box: result, denials and trace are those of a box that was built for it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.integration.pool.watched_programs import COUNTED, EXEC, SURROUNDINGS, VIEWS, Watched
from tests.running_server import RunningServer

pytestmark = pytest.mark.linux

WARM = ("warm", "forked")
SAME = (
    "stdout",
    "stderr",
    "exit_code",
    "signal",
    "outcome",
    "oom_killed",
    "files",
    "warnings",
    "enforcement",
    "limits_applied",
)
CASES = {**VIEWS, **COUNTED, **EXEC, **SURROUNDINGS}
_WARM_SECONDS = 60.0
_PLACES = re.compile(r"0x[0-9a-f]{6,}|\b\d{4,}\b")
# Of a run, not of what it did; a signed checkpoint comes with time.
_OWN = {"identity", "run", "key", "duration_ms", "usage", "count", "head", "root", "sig"}


@dataclass(frozen=True)
class Told:
    """What one server says of a run."""

    start: str
    result: dict[str, Any]
    trace: list[dict[str, Any]]


Run = Callable[[Watched], Told]


# What of a program ends by itself is seen.
_LEAVES = (
    "import atexit\n"
    "class Left:\n"
    "    def __del__(self): print('left', self.name, flush=True)\n"
    "one, two = Left(), Left()\n"
    "one.name, two.name = 'one', 'two'\n"
    "two.itself = two\n"
    "def held(): return one\n"
    "atexit.register(print, 'exit')\n"
    "try: print(open('in/secret').read())\n"
    "except OSError as error: print(type(error).__name__)\n"
    "try: open('out/x', 'w').write('x')\n"
    "except OSError as error: print(type(error).__name__)\n"
)


def runner_of(client: httpx.Client) -> Run:
    """A function that runs a case on that server."""

    def run(case: Watched) -> Told:
        request = {"code": case.code, "trace": True, **({"policy": case.policy} if case.policy else {}), **case.more}
        answer = client.post("/v1/run", json=request)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        records = client.get(f"/v1/runs/{body['run_id']}/trace").text.splitlines()
        return Told(body["timings"]["start"], body, [json.loads(line) for line in records])

    return run


def until_warm(run: Run) -> None:
    """Run until both kinds of watched runs are warm."""
    for policy in ("read: .", None):
        deadline = time.monotonic() + _WARM_SECONDS
        while run(Watched("pass", policy)).start != "warm":
            assert time.monotonic() < deadline, "no watched run was warm for a minute"


@pytest.fixture(scope="module")
def watched_warm(warm_server: RunningServer) -> Iterator[Run]:
    with warm_server.client() as client:
        run = runner_of(client)
        until_warm(run)
        yield run


@pytest.fixture(scope="module")
def watched_cold(cold_server: RunningServer) -> Iterator[Run]:
    with cold_server.client() as client:
        yield runner_of(client)


def compared(value: Any) -> Any:
    """Without numbers of processes and addresses."""
    if isinstance(value, dict):
        return {name: compared(one) for name, one in value.items()}
    if isinstance(value, list):
        return [compared(one) for one in value]
    return _PLACES.sub("(n)", value) if isinstance(value, str) else value


def compared_result(told: Told) -> dict[str, Any]:
    found = {key: compared(told.result[key]) for key in SAME}
    found["denials"] = compared([{**denial, "trace_index": 0} for denial in told.result["denials"]])
    return found


def compared_trace(told: Told) -> dict[str, Any]:
    """The records by who made them, in their order: who comes first of two makers is a matter of moments."""
    names: dict[int, str] = {}
    found: dict[str, Any] = {}
    main = next((record["pid"] for record in told.trace if record["op"] == "proc.exec"), 0)
    for record in told.trace:
        if record["op"] == "trace.checkpoint":
            continue
        kept: dict[str, Any] = {name: record.get(name) for name in ("kind", "op", "lane", "result", "v")}
        kept["args"] = compared({name: value for name, value in record["args"].items() if name not in _OWN})
        if "pid" in record:
            kept["who"] = "main" if record["pid"] == main else names.setdefault(record["pid"], "another")
        found.setdefault(record["origin"], []).append(kept)
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_watched_run_is_the_same_warm_and_cold(name: str, watched_warm: Run, watched_cold: Run) -> None:
    case = CASES[name]
    expected, found = watched_cold(case), watched_warm(case)
    assert expected.start == "cold"
    assert found.start in WARM
    assert compared_result(found) == compared_result(expected)
    assert compared_trace(found) == compared_trace(expected)


@pytest.mark.parametrize(
    "policies", [("read: ./in\nwrite: ./out\n",), ("read: ./in\n", "deny: read ./in/secret\nread: ./in\n")]
)
def test_a_guard_that_expects_a_policy_holds_the_one_that_comes(
    policies: tuple[str, ...], watched_warm: Run, watched_cold: Run
) -> None:
    cases = [Watched(_LEAVES, policy, {"files": {"in/secret": "S"}}) for policy in policies]
    expected = [watched_cold(case) for case in cases]
    # As many as make every box that waits one that was made after the first.
    for _ in range(6):
        for case, told in zip(cases, expected, strict=True):
            found = watched_warm(case)
            assert compared_result(found) == compared_result(told)
            assert compared_trace(found) == compared_trace(told)


def test_a_denial_points_at_its_record(watched_warm: Run) -> None:
    told = watched_warm(Watched("try: open('x', 'w')\nexcept OSError: pass", "read: ."))
    assert told.start in WARM
    [denial] = told.result["denials"]
    record = told.trace[denial["trace_index"]]
    assert (record["kind"], record["op"], record["args"]["target"]) == ("deny", "write", "/work/x")


def test_the_command_is_recorded_before_what_it_does(watched_warm: Run) -> None:
    told = watched_warm(Watched("open('out/x', 'w')", "write: ./out"))
    kinds = [record["op"] for record in told.trace if record["kind"] == "observe"]
    assert kinds == ["proc.exec", "fs.open_write"]
    first = next(record for record in told.trace if record["op"] == "proc.exec")
    write = next(record for record in told.trace if record["op"] == "fs.open_write")
    assert first["pid"] == write["pid"]
    assert first["args"]["rule"] == "the command itself"


def test_nothing_of_a_run_is_left_for_the_next(watched_warm: Run) -> None:
    watched_warm(Watched("open('out/x', 'w').write('left'); open('/tmp/x', 'w').write('left')", "write: ./out"))
    for _ in range(6):
        code = "import os; print(sorted(os.listdir('.')), os.listdir('/tmp'), os.listdir('/dev/shm'))"
        assert watched_warm(Watched(code, "read: .")).result["stdout"] == "['main.py'] [] []\n"
