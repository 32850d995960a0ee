# SPDX-License-Identifier: MIT
"""Floods and crowds: the server's memory and its health do not depend on what guests do."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.adversarial.guests import Answer, execute, output_of, running
from tests.adversarial.host_state import kilobytes, launcher_of, leaves_nothing
from tests.running_server import RunningServer

ALLOWED_GROWTH_KB = 150 << 10
_FLOOD = "import os\nblock = b'y\\n' * 32768\nfor _ in range({mb} << 4):\n    os.write({fd}, block)\nprint('end')"


@pytest.fixture(scope="module")
def server(start_server: Callable[..., RunningServer]) -> RunningServer:
    return start_server(arguments=("--backend", "jail"))


@contextlib.contextmanager
def stays_small(server: RunningServer) -> Iterator[None]:
    """Around runs that must not make the server or its launcher big, not even for a moment."""
    execute(server, "print(1)")
    pids = (server.pid, launcher_of(server))
    before = [kilobytes(pid) for pid in pids]
    yield
    grown = [kilobytes(pid, "VmHWM") - start for pid, start in zip(pids, before, strict=True)]
    assert max(grown) < ALLOWED_GROWTH_KB, grown


@pytest.mark.parametrize(("mb", "stream"), [(200, "stderr"), (512, "stdout")])
def test_flood_keeps_head_and_tail_and_counts(mb: int, stream: str, server: RunningServer) -> None:
    code = _FLOOD.format(mb=mb, fd=1 if stream == "stdout" else 2)
    with stays_small(server):
        result = execute(server, code, limits={"max_output_bytes": 65536, "timeout_seconds": 120})
    assert (result["outcome"], result["exit_code"]) == ("exited", 0), result
    assert result[f"{stream}_truncated"]
    assert len(result[stream]) == 65536
    assert result["stdout"].endswith("end\n")
    assert result[f"{stream}_bytes"] == (mb << 20) + (4 if stream == "stdout" else 0)


def test_flood_past_the_total_limit_ends_as_output_limited(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(arguments=("--backend", "jail"), AGENTBOX_MAX_TOTAL_OUTPUT_BYTES=str(8 << 20))
    with stays_small(server), leaves_nothing(server):
        result = execute(server, _FLOOD.format(mb=512, fd=1), limits={"max_output_bytes": 4096})
    assert (result["outcome"], result["exit_code"], result["signal"]) == ("output_limited", 137, 9)
    assert result["stdout_truncated"]
    assert len(result["stdout"]) == 4096
    assert output_of(server, "print(1)") == "1\n"


def test_flood_that_nobody_reads_slows_the_program_down_and_not_the_server(server: RunningServer) -> None:
    code = _FLOOD.format(mb=512, fd=1).replace("import os\n", "import os\nprint('ready', flush=True)\n")
    with stays_small(server), leaves_nothing(server), running(server, code):
        assert output_of(server, "print(1)") == "1\n"
        assert httpx.get(f"{server.url}/health").status_code == 200


ABUSE = {
    "fork bomb": (
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        "timed_out",
    ),
    "memory": ("kept = []\nwhile True:\n    kept.append(bytearray(1 << 20))", "oom_killed"),
    "flood": (_FLOOD.format(mb=64, fd=1), "exited"),
    "disk": ("f = open('f', 'wb')\nwhile True:\n    f.write(b'x' * (1 << 20))", "exited"),
    "files": ("n = 0\nwhile True:\n    n += 1\n    open(f'f{n}', 'w').close()", "exited"),
    "spin": ("while True:\n    pass", "timed_out"),
    "daemon": ("import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nprint('end')", "exited"),
    "honest": ("print(sum(range(10)))", "exited"),
}


def test_forty_runs_at_once_of_all_kinds_end_as_they_must_while_health_answers(server: RunningServer) -> None:
    names = [list(ABUSE)[number % len(ABUSE)] for number in range(40)]
    limits = {"memory_mb": 64, "disk_mb": 16, "pids": 16, "timeout_seconds": 4, "max_output_bytes": 4096}
    stop, answers = threading.Event(), []

    def watch() -> None:
        with httpx.Client(base_url=server.url, timeout=30.0) as client:
            while not stop.wait(0.05):
                answers.append(client.get("/health").status_code)

    def one(name: str) -> Answer:
        return execute(server, ABUSE[name][0], limits=limits)

    watcher = threading.Thread(target=watch)
    with stays_small(server), leaves_nothing(server), ThreadPoolExecutor(40) as pool:
        watcher.start()
        results = list(pool.map(one, names))
        stop.set()
        watcher.join()
    # On a busy machine a run may meet its deadline before its own end.
    wrong = [
        (name, result["outcome"])
        for name, result in zip(names, results, strict=True)
        if result["outcome"] not in (ABUSE[name][1], "timed_out")
    ]
    assert not wrong
    assert answers
    assert set(answers) == {200}
    assert output_of(server, "print(1)") == "1\n"
