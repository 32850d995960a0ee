# SPDX-License-Identifier: MIT
"""POST /v1/run with backend docker, on runc and on gVisor's runsc: what a run may do, what it gets, what is left."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.docker_engine import TestEngine
from tests.integration.commands import agentbox, assert_is_told_what_to_do
from tests.running_server import RunningServer

RUNTIMES = ("runc", "runsc")
NOWHERE = {"AGENTBOX_DOCKER_HOST": "unix:///nowhere/docker.sock"}


@pytest.fixture(scope="module", params=RUNTIMES)
def server(
    request: pytest.FixtureRequest, docker_engine: TestEngine, start_server: Callable[..., RunningServer]
) -> RunningServer:
    if request.param not in docker_engine.runtimes:
        pytest.skip(f"the engine has no runtime {request.param}")
    return start_server(
        AGENTBOX_SANDBOX_BACKEND="docker", AGENTBOX_DOCKER_RUNTIME=request.param, **docker_engine.environment
    )


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as found:
        yield found


def run(client: httpx.Client, code: str, status: int = 200, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/run", json={"code": code, **fields})
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


INSIDE = """
import ctypes, json, os, socket, sys
def attempt(function):
    try:
        return function()
    except OSError as error:
        return error.errno
def status(field):
    with open("/proc/self/status") as file:
        return next((line.split()[1] for line in file if line.startswith(field + ":")), "0")
def connect(host):
    with socket.socket() as sock:
        sock.settimeout(5)
        sock.connect((host, 80))
print(json.dumps({
    "argv": sys.argv, "cwd": os.getcwd(), "uid": os.getuid(), "stdin": sys.stdin.read(), "env": os.environ.get("GIVEN"),
    "capabilities": [int(status(name), 16) for name in ("CapPrm", "CapEff", "CapBnd")],
    "privileges": ctypes.CDLL(None).prctl(39, 0, 0, 0, 0),
    "root": attempt(lambda: open("/usr/made", "w")),
    "setuid": attempt(lambda: os.open("/work/planted", os.O_CREAT | os.O_WRONLY, 0o4755)),
    "chmod": attempt(lambda: os.chmod("/work/main.py", 0o4755)),
    "network": attempt(lambda: connect("192.0.2.1")),
    "listing": os.popen("ls /work").read().split(),
}))
"""


def test_program_runs_in_the_image_without_privileges_or_network(client: httpx.Client) -> None:
    body = run(client, INSIDE, stdin="from outside", env={"GIVEN": "yes"}, args=["one", "two words"])
    assert body["exit_code"] == 0, body["stderr"]
    seen = json.loads(body["stdout"])
    assert seen["argv"] == ["/work/main.py", "one", "two words"]
    assert (seen["cwd"], seen["stdin"], seen["env"]) == ("/work", "from outside", "yes")
    assert seen["uid"] not in (0, os.geteuid())
    assert (seen["capabilities"], seen["privileges"]) == ([0, 0, 0], 1)
    assert all(isinstance(seen[what], int) and seen[what] for what in ("root", "setuid", "chmod", "network")), seen
    assert seen["listing"] == ["main.py"]
    assert (body["backend"], body["network_isolated"]) == ("docker", True)
    held = body["enforcement"]
    assert {held[name] for name in ("filesystem", "network", "memory", "pids", "cpu", "disk")} == {"kernel"}
    assert held["exec"] == "none"


def test_node_and_bash_of_the_image_run_too(client: httpx.Client) -> None:
    assert run(client, "console.log([1, 2].length)", language="javascript")["stdout"] == "2\n"
    assert run(client, 'echo "$0 $PWD"; exit 3', language="bash")["exit_code"] == 3


def test_exit_code_and_signal_are_told_apart(client: httpx.Client) -> None:
    exited = run(client, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(137)")
    assert (exited["exit_code"], exited["signal"], exited["outcome"]) == (137, None, "exited")
    assert (exited["stdout"], exited["stderr"]) == ("out\n", "err\n")
    killed = run(client, "import os; os.kill(os.getpid(), 9)")
    assert (killed["exit_code"], killed["signal"]) == (137, signal.SIGKILL)


def test_timeout_keeps_what_was_written_and_leaves_nothing(
    client: httpx.Client, server: RunningServer, docker_engine: TestEngine
) -> None:
    code = "import os, time\nprint('begun', flush=True)\nif os.fork() == 0:\n os.setsid()\nwhile True: time.sleep(1)\n"
    body = run(client, code, status=408, limits={"timeout_seconds": 2})
    assert body["result"]["stdout"] == "begun\n"
    assert body["result"]["outcome"] == "timed_out"
    assert docker_engine.names(server.pid) == []


def test_daemon_that_holds_stdout_does_not_delay_the_answer(client: httpx.Client) -> None:
    code = "import os, time\nif os.fork() == 0:\n os.setsid()\n time.sleep(60)\nprint('done')"
    body = run(client, code, limits={"timeout_seconds": 30})
    assert (body["stdout"], body["outcome"]) == ("done\n", "exited")


def test_memory_beyond_the_limit_is_an_outcome(client: httpx.Client) -> None:
    code = "kept = []\nwhile True:\n kept.append(bytearray(b'x') * (4 << 20))"
    body = run(client, code, limits={"memory_mb": 64, "disk_mb": 16})
    assert (body["oom_killed"], body["outcome"]) == (True, "oom_killed")


def test_output_is_bounded_and_of_any_bytes(client: httpx.Client) -> None:
    code = "import sys\nsys.stdout.buffer.write(b'\\xff' + b'y' * 3_000_000)"
    body = run(client, code, limits={"max_output_bytes": 4096})
    assert (body["stdout_bytes"], body["stdout_truncated"]) == (3_000_001, True)
    assert base64.b64decode(body["stdout_base64"]).startswith(b"\xffy")


def test_files_and_snapshots_go_in_and_out(client: httpx.Client) -> None:
    given = {"data/in.txt": "given"}
    code = "import os\nos.makedirs('made')\nopen('made/out.txt', 'w').write(open('data/in.txt').read() + '!')"
    body = run(client, code, files=given, return_files=["made/out.txt"], snapshot=True)
    assert base64.b64decode(body["files"]["made/out.txt"]["base64"]) == b"given!"
    again = run(client, "print(open('made/out.txt').read())", snapshot_id=body["snapshot_id"])
    assert again["stdout"] == "given!\n"


def test_disk_is_one_bounded_file_system(client: httpx.Client) -> None:
    code = (
        "import os\nwritten = 0\n"
        "for place in ('/work', '/tmp', '/dev/shm'):\n"
        " try:\n  with open(place + '/fill', 'wb', buffering=0) as file:\n"
        "   while written < 64: written += file.write(bytes(1 << 20)) >> 20\n"
        " except OSError as error: print(place, error.errno)\nprint(written)"
    )
    body = run(client, code, limits={"disk_mb": 16, "memory_mb": 256})
    assert int(body["stdout"].splitlines()[-1]) <= 16


def test_policy_is_refused_with_the_reason(client: httpx.Client) -> None:
    answer = client.post("/v1/run", json={"code": "print(1)", "policy": "read: .\n"})
    assert answer.status_code == 400
    assert "container" in answer.json()["detail"]


def test_killed_server_s_containers_are_removed_at_the_next_start(
    docker_engine: TestEngine, start_server: Callable[..., RunningServer]
) -> None:
    environment = {"AGENTBOX_SANDBOX_BACKEND": "docker", **docker_engine.environment}
    victim = start_server(**environment)

    def kill_when_it_runs() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not docker_engine.names(victim.pid):
            time.sleep(0.05)
        victim.process.kill()

    killer = threading.Thread(target=kill_when_it_runs)
    killer.start()
    with victim.client() as client, pytest.raises(httpx.TransportError):
        client.post("/v1/run", json={"code": "import time; time.sleep(60)"})
    killer.join()
    assert docker_engine.names(victim.pid) != []
    start_server(state=victim.state_dir, **environment)
    assert docker_engine.names(victim.pid) == []
    assert str(victim.state_dir) not in Path("/proc/self/mountinfo").read_text()


def test_server_without_an_engine_does_not_start_and_says_why() -> None:
    done = agentbox("serve", "--backend", "docker", "--port", "0", environment=NOWHERE)
    assert_is_told_what_to_do(done, 4, "docker engine at unix:///nowhere/docker.sock does not answer", "docker.io")


def test_image_that_the_engine_does_not_have_is_an_error_and_no_result(docker_engine: TestEngine) -> None:
    environment = {"AGENTBOX_DOCKER_IMAGE": "nobody/has-this", **docker_engine.environment}
    done = agentbox("serve", "--backend", "docker", "--port", "0", environment=environment)
    assert_is_told_what_to_do(done, 4, "no image nobody/has-this", "agentbox image build")


def test_runtime_that_the_engine_does_not_have_is_an_error_that_says_how_to_get_it(docker_engine: TestEngine) -> None:
    environment = {"AGENTBOX_DOCKER_RUNTIME": "runsc-other", **docker_engine.environment}
    done = agentbox("serve", "--backend", "docker", "--port", "0", environment=environment)
    assert_is_told_what_to_do(done, 4, "no runtime runsc-other", "daemon.json")
