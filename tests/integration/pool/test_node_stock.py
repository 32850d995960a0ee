# SPDX-License-Identifier: MIT
"""The stock of waiting Node: filled, bounded, replaced, and gone with its server."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.adversarial.host_state import descendants, owner_groups, until
from tests.integration.pool.conftest import runner_of
from tests.running_server import RunningServer
from tests.standing import Standing

pytestmark = [
    pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here"),
    pytest.mark.skipif(os.geteuid() != 0, reason="control groups are looked into"),
]
PATIENCE_SECONDS = 60.0


def nodes_of(pid: int) -> set[int]:
    """Processes of Node in the boxes of one server."""
    found = set()
    for group in owner_groups(pid):
        with contextlib.suppress(OSError):
            for one in map(int, (group / "cgroup.procs").read_text().split()):
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{one}/comm").read_text() == "node\n":
                        found.add(one)
    return found


def until_stocked(server: RunningServer, count: int) -> set[int]:
    """The nodes that wait, when there are so many."""
    until(lambda: len(nodes_of(server.pid)) == count, f"{count} nodes wait", PATIENCE_SECONDS)
    return nodes_of(server.pid)


def run_on(server: RunningServer, code: str, **more: Any) -> dict[str, Any]:
    with server.client() as client:
        return runner_of(server, client)(code, language="javascript", **more)


def until_warm(server: RunningServer) -> None:
    until(
        lambda: run_on(server, "console.log(1)")["timings"]["start"] == "warm", "a run is warm again", PATIENCE_SECONDS
    )


@pytest.fixture(scope="module")
def server(start_server: Callable[..., RunningServer]) -> RunningServer:
    return start_server(AGENTBOX_POOL_NODE_SIZE="2", AGENTBOX_POOL_SIZE="1")


def test_as_many_wait_as_were_asked_for_and_each_serves_once(server: RunningServer) -> None:
    waiting = until_stocked(server, 2)
    assert run_on(server, "console.log(1)")["timings"]["start"] == "warm"
    until(lambda: len(nodes_of(server.pid) - waiting) == 1, "another one waits", PATIENCE_SECONDS)
    assert len(until_stocked(server, 2) & waiting) == 1


def test_killed_node_is_replaced(server: RunningServer) -> None:
    waiting = until_stocked(server, 2)
    for pid in waiting:
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(nodes_of(server.pid) - waiting) == 2, "two others wait", PATIENCE_SECONDS)
    until_warm(server)


def test_runs_go_on_when_the_maker_is_killed(server: RunningServer) -> None:
    waiting = until_stocked(server, 2)
    makers = [
        int(name)
        for name in filter(str.isdigit, os.listdir("/proc"))
        if _comm(int(name)) == "agentbox-maker" and _namespace(int(name)) == _outer(next(iter(waiting)))
    ]
    assert len(makers) == 1
    os.kill(makers[0], signal.SIGKILL)
    assert run_on(server, "console.log(1)")["stdout"] == "1\n"
    until(lambda: not nodes_of(server.pid) & waiting, "nothing of the old maker is left", PATIENCE_SECONDS)
    until_warm(server)


def _comm(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _namespace(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/user")
    return ""


def _outer(pid: int) -> str:
    """The user namespace of the nursery in which a box was made: that of the parent of its first process."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as status:
        parent = next(line.split()[1] for line in status if line.startswith("PPid:"))
        return _namespace(int(parent))
    return ""


def test_more_runs_than_stock_all_get_their_own_answer(server: RunningServer) -> None:
    def one(number: int) -> str:
        return str(run_on(server, f"setTimeout(() => console.log({number}), 20)")["stdout"])

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(one, range(12))) == [f"{number}\n" for number in range(12)]
    until_stocked(server, 2)


def test_run_that_is_given_up_leaves_the_stock_whole(server: RunningServer) -> None:
    until_stocked(server, 2)
    with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=server.url, timeout=0.5) as client:
        client.post("/v1/run", json={"code": "setInterval(() => {}, 100)", "language": "javascript"})
    until_warm(server)
    until_stocked(server, 2)


def test_none_waits_where_none_is_wanted(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(AGENTBOX_POOL_NODE_SIZE="0")
    with server.client() as client:
        run = runner_of(server, client)
        assert run("console.log(1)", language="javascript")["timings"]["start"] == "made"
    assert nodes_of(server.pid) == set()


def test_node_of_a_directory_of_its_own_waits_too(
    start_server: Callable[..., RunningServer],
) -> None:
    with prefix_of_node("/var/tmp") as program:
        server = start_server(AGENTBOX_NODE=program)
        until_stocked(server, 1)
        until_warm(server)
        assert run_on(server, "console.log(process.execPath)")["stdout"] == f"{program}\n"
        assert server.stop() == 0


def test_node_below_a_directory_that_boxes_write_to_is_started_cold(
    start_server: Callable[..., RunningServer],
) -> None:
    with prefix_of_node("/tmp") as program:
        server = start_server(AGENTBOX_NODE=program)
        answer = run_on(server, "console.log(process.execPath)")
        assert (answer["stdout"], answer["timings"]["start"]) == (f"{program}\n", "cold")
        assert any("where a box has files of its own" in line for line in server.lines)
        assert server.stop() == 0


@contextlib.contextmanager
def prefix_of_node(above: str) -> Iterator[str]:
    """A Node with a directory of its own, which a box must be shown."""
    found = shutil.which("node")
    assert found is not None
    with tempfile.TemporaryDirectory(dir=above) as prefix:
        os.chmod(prefix, 0o755)
        os.mkdir(f"{prefix}/bin")
        shutil.copy(os.path.realpath(found), f"{prefix}/bin/node")
        yield f"{prefix}/bin/node"


@pytest.mark.parametrize("name", ["user", "user_with_cgroups"])
def test_waiting_node_serves_a_server_that_is_not_root(
    name: str, start_server: Callable[..., RunningServer], standings: Callable[[str], Standing]
) -> None:
    server = start_server(standing=standings(name))
    answer = run_on(server, "console.log(require('fs').readFileSync(0) + '')", stdin="x")
    assert answer["stdout"] == "x\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_server(number: signal.Signals, start_server: Callable[..., RunningServer]) -> None:
    server = start_server(AGENTBOX_POOL_NODE_SIZE="2")
    waiting = until_stocked(server, 2)
    below = set(descendants(server.pid)) | waiting
    server.stop(number)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below), "nothing is left", PATIENCE_SECONDS)
