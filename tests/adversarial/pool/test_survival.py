# SPDX-License-Identifier: MIT
"""Parts of the pool are killed at rest and at work: they are replaced, and every accepted run has a result."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.adversarial.escape.posture import processes_with
from tests.adversarial.guests import execute, running
from tests.adversarial.host_state import HostState, descendants, launcher_of, owner_groups, until
from tests.adversarial.pool.conftest import until_warm, warm_server
from tests.running_server import RunningServer

pytestmark = [pytest.mark.linux, pytest.mark.root]

PARTS = ("maker", "zygote", "init", "child")


def pids_of(server: RunningServer, part: str) -> list[int]:
    """Processes of the server's pool: its maker, its warm interpreters, inits of boxes, children that wait."""
    found = []
    everything = everything_of(server)
    for pid in everything:
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            depth = len(_status(pid, "NSpid").split())
            if name == f"agentbox-{part}" or (
                name.startswith("python") and depth >= 2 and (part, depth) in (("zygote", 2), ("child", 3))
            ):
                found.append(pid)
    return found


def everything_of(server: RunningServer) -> list[int]:
    """Descendants, and the nursery, whose maker has left the tree of the server's processes."""
    found = set(descendants(server.pid))
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{name}/comm").read_text().strip() == "agentbox-maker" and _owner(int(name)) == server.pid:
                found |= {int(name), *descendants(int(name))}
    return sorted(found)


def _status(pid: int, name: str) -> str:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.split(":", 1)[1].strip()
    return ""


def _owner(pid: int) -> int:
    """The server to whose process tree a maker belongs."""
    while pid > 1:
        with contextlib.suppress(OSError):
            if b"agentbox.cli.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        pid = int(_status(pid, "PPid"))
    return 0


@pytest.fixture
def server(start_server: Callable[..., RunningServer]) -> RunningServer:
    return warm_server(start_server, AGENTBOX_POOL_SIZE="2", AGENTBOX_POOL_NODE_SIZE="0")


@pytest.mark.parametrize("part", PARTS)
def test_part_that_is_killed_at_rest_is_replaced_and_nothing_of_it_is_left(part: str, server: RunningServer) -> None:
    until(lambda: len(pids_of(server, "child")) == 2, "the stock was not filled")
    before = HostState.around(server)
    killed = pids_of(server, part)
    assert killed
    below = {pid for one in killed for pid in descendants(one)}
    for pid in killed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in killed), "a killed part is still there")
    if part == "maker":
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below), "something outlived its maker")
    result = execute(server, "print('on')")
    assert (result["stdout"], result["outcome"]) == ("on\n", "exited")
    until_warm(server)
    until(lambda: len(pids_of(server, "child")) == 2, "the stock was not filled again")
    for kind, count in (("maker", 1), ("zygote", 1), ("init", 2)):
        until(lambda kind=kind, count=count: len(pids_of(server, kind)) == count, f"not {count} {kind} left")
    until(lambda: HostState.around(server).groups <= before.groups + 2, "control groups were left")
    until(lambda: HostState.around(server).descriptors <= before.descriptors + 12, "descriptors were left")


def test_maker_that_is_killed_again_and_again_is_replaced_each_time(server: RunningServer) -> None:
    with server.client() as client:
        for _ in range(4):
            for pid in pids_of(server, "maker"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            answer = client.post("/v1/run", json={"code": "print('on')"})
            # Its box may have been killed before anything ran in it.
            assert answer.status_code in (200, 503), answer.text
            assert "again" in answer.json().get("hint", "") or (
                answer.json().get("exit_code"),
                answer.json().get("stdout"),
            ) in ((0, "on\n"), (137, "")), answer.text
            until_warm(server)


@pytest.mark.parametrize("part", PARTS)
def test_every_run_has_an_answer_while_parts_are_killed(part: str, server: RunningServer) -> None:
    def one(number: int) -> str:
        with server.client() as client:
            answer = client.post("/v1/run", json={"code": f"import time\ntime.sleep(0.02)\nprint({number})"})
        if answer.status_code == 503:
            assert answer.json()["hint"]
            return "refused"
        assert answer.status_code == 200, (answer.text, *server.lines[-60:])
        body = answer.json()
        if body["outcome"] == "killed":
            assert body["exit_code"] == 137
            return "killed"
        assert (answer.status_code, body["stdout"], body["exit_code"]) == (200, f"{number}\n", 0) or (
            body["exit_code"],
            body["signal"],
        ) == (137, 9), body
        return str(body["outcome"])

    with ThreadPoolExecutor(4) as threads:
        answers = threads.map(one, range(60))
        for _ in range(6):
            for pid in pids_of(server, part)[:2]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            execute_quietly(server)
        assert len(list(answers)) == 60
    until_warm(server)
    until(lambda: len(pids_of(server, "maker")) == 1, "more than one maker")
    until(lambda: len(pids_of(server, "zygote")) == 1, "more than one interpreter")


def execute_quietly(server: RunningServer) -> None:
    with server.client() as client:
        client.post("/v1/run", json={"code": "pass"})


@pytest.mark.parametrize("victim", ["server", "launcher"])
def test_nothing_of_the_pool_outlives_its_server(victim: str, start_server: Callable[..., RunningServer]) -> None:
    server = warm_server(start_server)
    everything = everything_of(server)
    assert len(everything) >= 6
    mark = secrets.token_hex(8)
    with (
        contextlib.suppress(httpx.HTTPError),
        running(server, "print('ready', flush=True)\nimport time\ntime.sleep(60)", args=[mark]),
    ):
        everything = everything_of(server)
        os.kill(server.pid if victim == "server" else launcher_of(server), signal.SIGKILL)
        if victim == "launcher":
            os.kill(server.pid, signal.SIGKILL)
        until(lambda: processes_with(mark) == [], "the run outlived the server")
    until(lambda: not [pid for pid in everything if _alive(pid)], "something outlived the server")


def _alive(pid: int) -> bool:
    try:
        return not _status(pid, "State").startswith("Z")
    except OSError:
        return False


def test_server_that_loses_its_launcher_goes_on_or_says_so(start_server: Callable[..., RunningServer]) -> None:
    server = warm_server(start_server)
    os.kill(launcher_of(server), signal.SIGKILL)
    with server.client() as client:
        answers = [client.post("/v1/run", json={"code": "print(1)"}) for _ in range(4)]
    assert {answer.status_code for answer in answers} <= {200, 503}
    assert all(answer.json()["stdout"] == "1\n" for answer in answers if answer.status_code == 200)


def test_poisoned_box_of_the_stock_is_thrown_away(server: RunningServer) -> None:
    until(lambda: len(pids_of(server, "child")) == 2, "the stock was not filled")
    poisoned = pids_of(server, "child")
    for pid in poisoned:
        os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(_alive(pid) for pid in poisoned), "killed children live")
    for _ in range(3):
        assert execute(server, "print(1)")["stdout"] == "1\n"
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in poisoned), "the poisoned boxes are still there")


def test_interpreter_is_replaced_after_so_many_runs(start_server: Callable[..., RunningServer]) -> None:
    server = warm_server(start_server, AGENTBOX_POOL_RUNS="5", AGENTBOX_POOL_SIZE="1")
    seen = set()
    for _ in range(20):
        result = execute(server, "print(hash('a'))")
        if result["timings"]["start"] != "cold":
            seen.add(result["stdout"])
    assert len(seen) >= 3
    until(lambda: len(pids_of(server, "zygote")) == 1, "old interpreters stay")


def test_interpreter_is_replaced_after_so_many_seconds(start_server: Callable[..., RunningServer]) -> None:
    server = warm_server(start_server, AGENTBOX_POOL_SECONDS="1", AGENTBOX_POOL_SIZE="1")
    first = pids_of(server, "zygote")

    def replaced() -> bool:
        execute(server, "pass")
        return not set(first) & set(pids_of(server, "zygote"))

    until(replaced, "the interpreter was not replaced")


def test_only_so_many_keys_have_stock(
    start_server: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory
) -> None:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("".join(f"{name}:{name * 40}\n" for name in "abcde"))
    keys.chmod(0o600)
    server = start_server(
        AGENTBOX_KEY_FILE=str(keys), AGENTBOX_POOL_KEYS="2", AGENTBOX_POOL_SIZE="1", AGENTBOX_POOL_NODE_SIZE="0"
    )
    for name in "abcde":
        until_warm(server, authorization=f"Bearer {name * 40}")
    until(lambda: len(pids_of(server, "zygote")) == 2, "not two interpreters for five keys")
    until(lambda: len(pids_of(server, "init")) <= 2, "more boxes than two keys have")


def test_idle_warm_box_is_small(start_server: Callable[..., RunningServer]) -> None:
    """Proportional memory of a box's two processes; the bound has room for libraries that only they map."""
    server = warm_server(start_server, AGENTBOX_POOL_SIZE="8", AGENTBOX_POOL_NODE_SIZE="0")
    until(lambda: len(pids_of(server, "child")) == 8, "the stock was not filled")
    total = 0
    for pid in [*pids_of(server, "child"), *pids_of(server, "init")]:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total += int(next(line for line in rollup.splitlines() if line.startswith("Pss:")).split()[1])
    assert total / 8 <= 4096, f"{total / 8} KiB for each box"


def test_closing_the_server_ends_the_pool(start_server: Callable[..., RunningServer]) -> None:
    server = warm_server(start_server)
    everything = everything_of(server)
    assert server.stop() == 0
    until(lambda: not [pid for pid in everything if _alive(pid)], "something outlived the server")
    assert owner_groups(server.pid) == []
