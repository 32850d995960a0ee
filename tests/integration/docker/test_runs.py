# SPDX-License-Identifier: MIT
"""POST /v1/run with backend docker, on runc and on gVisor's runsc: what a run may do, what it gets, what is left."""

from __future__ import annotations

import base64
import functools
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentbox.isolation.backends.docker.sweeping import sweep, sweep_mounts
from agentbox.isolation.plan import WORKSPACE
from agentbox.linux import mounts
from tests.docker_engine import TestEngine
from tests.integration.commands import agentbox, assert_is_told_what_to_do
from tests.running_server import RunningServer

RUNTIMES = ("runc", "runsc")
NOWHERE = {"AGENTBOX_DOCKER_HOST": "unix:///nowhere/docker.sock"}


@pytest.fixture(scope="module")
def allowed() -> Iterator[int]:
    """The port of a service of this host that the servers' operator allows."""
    service = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    yield service.server_port
    service.shutdown()
    service.server_close()


@pytest.fixture(scope="module")
def serving(
    docker_engine: TestEngine, start_server: Callable[..., RunningServer], allowed: int
) -> Callable[[str], RunningServer]:
    """The server whose containers are of a runtime."""

    @functools.cache
    def start(runtime: str) -> RunningServer:
        return start_server(
            AGENTBOX_SANDBOX_BACKEND="docker",
            AGENTBOX_DOCKER_RUNTIME=runtime,
            AGENTBOX_EGRESS_ALLOWLIST=f"127.0.0.1:{allowed}",
            **docker_engine.environment,
        )

    return start


@pytest.fixture(params=RUNTIMES)
def server(request: pytest.FixtureRequest, serving: Callable[[str], RunningServer]) -> RunningServer:
    """Asked for by what may differ between kernels."""
    return serving(request.param)


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as found:
        yield found


@pytest.fixture
def runc(serving: Callable[[str], RunningServer]) -> Iterator[httpx.Client]:
    """A client where one runtime is enough."""
    with serving("runc").client() as found:
        yield found


def run(client: httpx.Client, code: str, status: int = 200, **fields: Any) -> dict[str, Any]:
    # Without a list of its own a run has the operator's.
    answer = client.post("/v1/run", json={"code": code, "egress_allowlist": [], **fields})
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
    "chmod": attempt(lambda: os.chmod("main.py", 0o4755)),
    "network": attempt(lambda: connect("192.0.2.1")),
    "listing": os.popen("ls /work").read().split(),
}))
"""


def test_program_runs_in_the_image_without_privileges_or_network(client: httpx.Client) -> None:
    body = run(client, INSIDE, stdin="from outside", env={"GIVEN": "yes"}, args=["one", "two words"])
    assert body["exit_code"] == 0, body["stderr"]
    seen = json.loads(body["stdout"])
    assert seen["argv"] == [f"{WORKSPACE}/main.py", "one", "two words"]
    assert (seen["cwd"], seen["stdin"], seen["env"]) == ("/work", "from outside", "yes")
    assert seen["uid"] not in (0, os.geteuid())
    assert (seen["capabilities"], seen["privileges"]) == ([0, 0, 0], 1)
    assert all(isinstance(seen[what], int) and seen[what] for what in ("root", "setuid", "chmod", "network")), seen
    assert seen["listing"] == ["main.py"]
    assert (body["backend"], body["network_isolated"]) == ("docker", True)
    held = body["enforcement"]
    assert {held[name] for name in ("filesystem", "network", "memory", "pids", "cpu", "disk")} == {"kernel"}
    assert held["exec"] == "none"


def test_node_and_bash_of_the_image_run_too(runc: httpx.Client) -> None:
    assert run(runc, "console.log([1, 2].length)", language="javascript")["stdout"] == "2\n"
    assert run(runc, 'echo "$0 $PWD"; exit 3', language="bash")["exit_code"] == 3


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


def test_daemon_that_holds_stdout_does_not_delay_the_answer(runc: httpx.Client) -> None:
    code = "import os, time\nif os.fork() == 0:\n os.setsid()\n time.sleep(60)\nprint('done')"
    body = run(runc, code, limits={"timeout_seconds": 30})
    assert (body["stdout"], body["outcome"]) == ("done\n", "exited")


def test_memory_beyond_the_limit_is_an_outcome(client: httpx.Client) -> None:
    # Less than files and memory may have together, and more than memory.
    code = "import time\nkept = [bytearray(b'x') * (4 << 20) for _ in range(60)]\ntime.sleep(20)"
    body = run(client, code, limits={"memory_mb": 64, "disk_mb": 256})
    assert (body["oom_killed"], body["outcome"]) == (True, "oom_killed")


def test_output_is_bounded_and_of_any_bytes(client: httpx.Client) -> None:
    code = "import sys\nsys.stdout.buffer.write(b'\\xff' + b'y' * 3_000_000)"
    body = run(client, code, limits={"max_output_bytes": 4096})
    assert (body["stdout_bytes"], body["stdout_truncated"]) == (3_000_001, True)
    assert base64.b64decode(body["stdout_base64"]).startswith(b"\xffy")


def test_files_and_snapshots_go_in_and_out(runc: httpx.Client) -> None:
    given = {"data/in.txt": "given"}
    code = "import os\nos.makedirs('made')\nopen('made/out.txt', 'w').write(open('data/in.txt').read() + '!')"
    body = run(runc, code, files=given, return_files=["made/out.txt"], snapshot=True)
    assert base64.b64decode(body["files"]["made/out.txt"]["base64"]) == b"given!"
    again = run(runc, "print(open('made/out.txt').read())", snapshot_id=body["snapshot_id"])
    assert again["stdout"] == "given!\n"


def test_disk_is_one_bounded_file_system(runc: httpx.Client) -> None:
    code = (
        "import os\nwritten = 0\n"
        "for place in ('/work', '/tmp', '/dev/shm'):\n"
        " try:\n  with open(place + '/fill', 'wb', buffering=0) as file:\n"
        "   while written < 64: written += file.write(bytes(1 << 20)) >> 20\n"
        " except OSError as error: print(place, error.errno)\nprint(written)"
    )
    body = run(runc, code, limits={"disk_mb": 16, "memory_mb": 256})
    assert int(body["stdout"].splitlines()[-1]) <= 16


READ_WRITE = """
import json, os
def attempt(function):
    try:
        return function()
    except OSError as error:
        return type(error).__name__
print(json.dumps({
    "data": attempt(lambda: open("data/given").read()), "other": attempt(lambda: open("other/given").read()),
    "deny": attempt(lambda: open("data/denied").read()), "link": attempt(lambda: open("data/link").read()),
    "write": attempt(lambda: open("out/made", "w").write("1")), "narrow": attempt(lambda: open("data/made", "w")),
    "exec": attempt(lambda: os.posix_spawn("/bin/true", ["true"], {})),
    "variables": sorted(os.environ.keys() & {"A", "B"}),
}))
"""


def test_policy_is_held_by_what_the_container_shows_and_by_its_kernel(client: httpx.Client) -> None:
    linked = run(
        client,
        "import os; os.makedirs('data'); os.symlink('/etc/passwd', 'data/link'); os.symlink('/etc', 'linked')",
        snapshot=True,
    )
    body = run(
        client,
        READ_WRITE,
        snapshot_id=linked["snapshot_id"],
        files={"data/given": "read", "data/denied": "no", "other/given": "no"},
        policy="read: ./data\nwrite: ./out\nread: ./linked\ndeny: read ./data/denied\nenv: A\n",
        env={"A": "1", "B": "2"},
        return_files=["out/made"],
    )
    assert body["exit_code"] == 0, body["stderr"]
    seen = json.loads(body["stdout"])
    assert (seen["data"], seen["write"], seen["variables"]) == ("read", 1, ["A"])
    refused = {"PermissionError", "FileNotFoundError", "OSError"}
    assert {seen["other"], seen["deny"], seen["narrow"], seen["exec"]} <= refused, seen
    assert body["files"].keys() == {"out/made"}
    held = body["enforcement"]
    assert (held["filesystem"], held["exec"]) == ("kernel", "kernel")
    assert body["trace"]["count"] > 2


@pytest.mark.parametrize(
    ("policy", "word"),
    [("exec: git status\n", "git status"), ("read: .\ndeny: read /etc/passwd\n", "a place of the image")],
)
def test_rule_that_no_container_holds_is_refused_with_the_reason(runc: httpx.Client, policy: str, word: str) -> None:
    answer = runc.post("/v1/run", json={"code": "print(1)", "policy": policy})
    assert answer.status_code == 400
    assert word in answer.json()["detail"]


ASK = """
import json, socket, sys
def ask(host, port):
    try:
        with socket.create_connection((host, port), 10) as sock:
            sock.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
            return sock.recv(100).decode("latin-1").split()[1]
    except OSError as error:
        return type(error).__name__
print(json.dumps([ask("127.0.0.1", int(sys.argv[1])), ask("denied.test", 80)]))
"""


def test_container_reaches_what_the_gateway_allows_and_nothing_else(
    client: httpx.Client, server: RunningServer, docker_engine: TestEngine, allowed: int
) -> None:
    body = run(client, ASK, args=[str(allowed)], egress_allowlist=[f"127.0.0.1:{allowed}"])
    assert json.loads(body["stdout"]) == ["200", "gaierror"], body
    assert body["enforcement"]["network"] == "gateway"
    assert docker_engine.names(server.pid) == []


OWNER = """
import asyncio, os, sys
from agentbox.isolation.backends.docker import DockerBackend
from agentbox.isolation.facilities import DockerOptions, Facilities
from agentbox.linux.cgroup_owners import owner_name
from agentbox.models import Confinement, Limits
async def main():
    facilities = await Facilities.open()
    facilities.docker = DockerOptions(host=sys.argv[1])
    limits = Limits(timeout_seconds=60, memory_mb=64, cpus=1.0, pids=16, disk_mb=8, max_output_bytes=1024)
    directory = f"{sys.argv[2]}/{owner_name()}/work"
    os.makedirs(directory)
    await DockerBackend(facilities).launch(Confinement(limits), directory)
    print("launched", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_what_a_killed_owner_leaves_is_removed_by_the_next_one(docker_engine: TestEngine, tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, docker_engine.host, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "launched\n"
    owner.kill()
    owner.communicate()
    assert docker_engine.names(owner.pid) != []
    daemon = docker_engine.docker().peer()
    assert daemon is not None
    assert mounts.below(str(tmp_path), str(daemon)) != []
    await sweep(docker_engine.docker())
    sweep_mounts(daemon)
    assert docker_engine.names(owner.pid) == []
    assert mounts.below(str(tmp_path), str(daemon)) == []


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
