# SPDX-License-Identifier: MIT
"""POST /v1/run with a kernel of its own for every run."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import httpx
import pytest

from agentbox.errors import IsolationError
from agentbox.isolation.backends.gvisor import GvisorBackend
from agentbox.isolation.facilities import Facilities
from agentbox.isolation.plan import WORKSPACE
from agentbox.models import Confinement, Limits
from tests.integration.gvisor.conftest import Run

HELD = {"filesystem", "network", "memory", "pids", "cpu", "disk"}
READ = "allow: read ./main.py\nallow: write ./out\n"


def records(client: httpx.Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = client.get(f"/v1/runs/{body['run_id']}/trace")
    assert answer.status_code == 200
    return [json.loads(line) for line in answer.text.splitlines()]


def test_program_has_a_kernel_that_is_not_the_hosts(run: Run) -> None:
    body = run("import os; print(os.uname().release, os.getuid(), os.getcwd())")
    assert body["stdout"] == "4.4.0 1000 /work\n"
    assert body["backend"] == "gvisor"
    assert {name for name, layer in body["enforcement"].items() if layer == "kernel"} == HELD


@pytest.mark.parametrize(
    ("language", "code", "said"),
    [
        ("python", "import sys; print(sys.argv[1:], sys.stdin.read())", "['a', 'b'] in\n"),
        (
            "javascript",
            "console.log(process.argv.slice(2), require('fs').readFileSync(0, 'utf8'))",
            "[ 'a', 'b' ] in\n",
        ),
        ("bash", 'echo "$@" "$(cat)"; ls; stat -c %s main.sh >/dev/null', "a b in\nmain.sh\n"),
    ],
)
def test_every_language_gets_words_stdin_and_files(run: Run, language: str, code: str, said: str) -> None:
    assert (run(code, language=language, args=["a", "b"], stdin="in")["stdout"]) == said


def test_one_long_write_arrives_whole_and_in_order(run: Run) -> None:
    body = run("print(''.join(f'{n:9}' for n in range(100_000)), end='')")
    assert body["stdout"] == "".join(f"{n:9}" for n in range(100_000))
    assert not body["stdout_truncated"]


def test_files_come_back_and_a_snapshot_goes_on(run: Run) -> None:
    first = run(
        "open('made', 'w').write(open('given').read() * 2)",
        files={"given": "x"},
        return_files=["made"],
        snapshot=True,
    )
    assert base64.b64decode(first["files"]["made"]["base64"]) == b"xx"
    second = run("import os; print(open('made').read(), sorted(os.listdir()))", snapshot_id=first["snapshot_id"])
    assert second["stdout"] == "xx ['given', 'made', 'main.py']\n"


@pytest.mark.parametrize(
    ("code", "limits", "outcome", "oom"),
    [
        ("while True: pass", {"timeout_seconds": 1}, "timed_out", False),
        ("x = bytearray(900 << 20)\nwhile True: pass", {"memory_mb": 128}, "oom_killed", True),
        ("import os\nwhile True: os.write(1, b'x' * 65536)", {}, "output_limited", False),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", {}, "exited", False),
    ],
    ids=["time", "memory", "output", "signal"],
)
def test_run_ends_as_its_limits_say(run: Run, code: str, limits: dict[str, int], outcome: str, oom: bool) -> None:
    body = run(code, limits=limits)
    assert (body["outcome"], body["oom_killed"]) == (outcome, oom)
    assert body["signal"] == (11 if outcome == "exited" else 9)


def test_processes_files_and_the_first_process_are_held(run: Run) -> None:
    body = run(
        "import os, errno\n"
        "n = 0\n"
        "try:\n"
        "  while n < 200:\n"
        "    if os.fork() == 0: os.read(0, 1); import time; time.sleep(60)\n"
        "    n += 1\n"
        "except OSError as error: print(error.errno == errno.EAGAIN, n < 40)\n"
        "try:\n"
        "  with open('big', 'wb', buffering=0) as file:\n"
        "    while True: file.write(bytes(1 << 20))\n"
        "except OSError as error: print(error.errno == errno.ENOSPC)\n"
        "try: os.kill(1, 9)\n"
        "except OSError as error: print(error.errno == errno.EPERM)\n",
        limits={"pids": 32, "disk_mb": 16, "memory_mb": 1024},
    )
    assert body["stdout"] == "True True\nTrue\nTrue\n", body["stderr"]


def test_second_run_finds_a_box_that_has_booted(run: Run) -> None:
    kinds = []
    for _ in range(60):
        body = run("import os; print(sorted(os.listdir('/work')), sorted(os.listdir('/tmp')))")
        assert body["stdout"] == "['main.py'] []\n"
        kinds.append(body["timings"]["start"])
        if kinds[-1] == "made":
            break
    assert kinds[-1] == "made"
    held = run("print(1)", limits={"memory_mb": 64})
    assert held["limits_applied"]["memory_mb"] == 64


def test_runs_at_the_same_time_do_not_see_each_other(run: Run) -> None:
    code = (
        "import os, time; open('/tmp/%d', 'w'); time.sleep(0.3); "
        "print(os.listdir('/tmp'), len(os.listdir('/proc')) < 60)"
    )
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda n: run(code % n)["stdout"], range(3)))
    assert found == [f"['{n}'] True\n" for n in range(3)]


def test_kernel_s_own_trace_tells_what_was_started_and_no_variables(run: Run, client: httpx.Client) -> None:
    body = run(
        "import subprocess; subprocess.run(['/bin/sh', '-c', '/bin/true; exec /bin/echo done'])",
        env={"SECRET": "hush"},
        trace=True,
    )
    assert body["stdout"] == "done\n"
    found = [one for one in records(client, body) if one["op"] == "proc.exec"]
    assert [one["args"]["exe"].rpartition("/")[2] for one in found[1:]] == ["dash", "true", "echo"]
    assert found[0]["args"]["argv"][-1] == f"{WORKSPACE}/main.py"
    assert {one["origin"] for one in found} == {"kernel"}
    assert "hush" not in json.dumps(found)


def test_policy_holds_files_and_keeps_the_program_from_starting_another(run: Run, client: httpx.Client) -> None:
    body = run(
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None)\n"
        "print(libc.open(b'/work/secret', 0), libc.open(b'main.py', 1), libc.system(b'echo started') >> 8)\n"
        "print(libc.syscall(322, -100, b'/bin/true', 0, 0, 0))\n"
        "open('out/result', 'w').write('x')\n"
        "open('main.py', 'a')\n",
        files={"secret": "s"},
        policy=READ,
        return_files=["out/result"],
    )
    assert body["stdout"] == "-1 -1 127\n-1\n"
    assert f"policy denies write {WORKSPACE}/main.py" in body["stderr"]
    assert body["files"]["out/result"]["bytes"] == 1
    assert (body["enforcement"]["exec"], body["enforcement"]["filesystem"]) == ("kernel", "kernel")
    told = {(one["kind"], one["op"], one["origin"]) for one in records(client, body)}
    assert ("deny", "write", "guest") in told
    assert ("observe", "proc.exec", "kernel") in told


@pytest.mark.parametrize("language", ["javascript", "bash"])
def test_no_program_under_a_policy_starts_another(run: Run, language: str) -> None:
    entry, code = {
        "javascript": ("main.js", "try { process.binding('spawn_sync') } catch {}\n"
                       "console.log(require('child_process').spawnSync('/bin/echo', ['x']).status)"),
        "bash": ("main.sh", "/bin/echo started; echo $?"),
    }[language]  # fmt: skip
    body = run(code, language=language, policy=f"allow: read ./{entry}\n")
    assert "started" not in body["stdout"]
    assert body["enforcement"]["exec"] == "kernel"


def test_rule_that_nothing_can_hold_there_is_refused_with_the_reason(client: httpx.Client) -> None:
    answer = client.post("/v1/run", json={"code": "print(1)", "policy": "exec: git status\n"})
    assert answer.status_code == 400
    assert "`exec: git status` cannot be held by backend gvisor" in answer.json()["detail"]
    assert "jail" in answer.json()["hint"]


def test_gateway_is_the_only_way_out(run: Run) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(b"from the host")

        threading.Thread(target=serve, daemon=True).start()
        code = (
            "import socket\n"
            "def tried(host, port):\n"
            "  try:\n"
            "    with socket.create_connection((host, port), 5) as s: return s.recv(100).decode()\n"
            "  except OSError as error: return type(error).__name__\n"
            f"print(tried('127.0.0.1', {port}), tried('192.0.2.1', 80), tried('denied.test', 80), sep='|')\n"
            "l = socket.create_server(('127.0.0.1', 0)); print(bool(socket.create_connection(l.getsockname(), 5)))\n"
        )
        closed = run(code)
        opened = run(code, egress_allowlist=["192.0.2.2"])
    assert closed["stdout"] == "ConnectionRefusedError|OSError|gaierror\nTrue\n"
    assert closed["enforcement"]["network"] == "kernel"
    assert opened["stdout"].splitlines()[1] == "True"
    assert "from the host" not in opened["stdout"]
    assert opened["enforcement"]["network"] == "gateway"
    assert {denial["target"] for denial in opened["denials"]} == {"192.0.2.1:80", "denied.test"}


_OWNER = """
import asyncio, sys, time
from agentbox.isolation.backends.gvisor import GvisorBackend
from agentbox.isolation.facilities import Facilities
from agentbox.models import Confinement, Limits

async def main():
    limits = Limits(timeout_seconds=20, memory_mb=256, cpus=1.0, pids=64, disk_mb=16, max_output_bytes=1 << 16)
    box = await GvisorBackend(await Facilities.open()).launch(Confinement(limits))
    await box.start(["/bin/sh", "-c", "sleep 1000 & sleep 1000"], {}, "/work", (0, 2, 2))
    print("there", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_nothing_is_left_when_the_owner_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"there\n"
        left = _gvisors_of(owner.pid)
        owner.kill()
    assert left
    for pid in left:
        _wait_until_gone(pid)


def _gvisors_of(ancestor: int) -> list[int]:
    """Processes that gVisor consists of, below that one."""
    parents, names = {}, {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    name, rest = file.read().rsplit(")", 1)
            except OSError:
                continue
            parents[int(entry)], names[int(entry)] = int(rest.split()[1]), name
    found = []
    for pid in parents:
        above = pid
        while above in parents and above != ancestor:
            above = parents[above]
        if above == ancestor and _is_gvisor(pid):
            found.append(pid)
    return found


def _is_gvisor(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().startswith(b"runsc-sandbox")
    except OSError:
        return False


def _wait_until_gone(pid: int) -> None:
    """The kernel kills it with its namespace, which takes a moment."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([fd], [], [], 20)[0], f"{pid} lives on"
    os.close(fd)


def test_box_whose_kernel_was_killed_says_so_and_the_next_one_works() -> None:
    limits = Limits(timeout_seconds=20, memory_mb=256, cpus=1.0, pids=64, disk_mb=16, max_output_bytes=1 << 16)

    async def main() -> None:
        facilities = await Facilities.open()
        try:
            backend = GvisorBackend(facilities)
            first, second = [await backend.launch(Confinement(limits)) for _ in range(2)]
            with open(os.devnull, "r+b") as nothing:
                stdio = [nothing.fileno()] * 3
                ended = await first.start(["/bin/sleep", "1000"], {}, "/work", stdio)
                for pid in _gvisors_of(os.getpid()):
                    os.kill(pid, signal.SIGKILL)
                assert (await ended).status is None
                with pytest.raises(IsolationError, match="before its program began"):
                    await second.start(["/bin/true"], {}, "/work", stdio)
                third = await backend.launch(Confinement(limits))
                assert (await (await third.start(["/bin/true"], {}, "/work", stdio))).status == 0
            for box in (first, second, third):
                await box.destroy()
        finally:
            await facilities.close()

    asyncio.run(main())
