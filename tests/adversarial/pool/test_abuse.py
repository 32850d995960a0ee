# SPDX-License-Identifier: MIT
# ruff: noqa: E501
"""Programs that turn against what the pool gave them: the server goes on, and the result is what they did."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.adversarial.guests import execute, running
from tests.adversarial.host_state import leaves_nothing, until
from tests.adversarial.pool.conftest import WAYS, said, until_warm
from tests.running_server import RunningServer

pytestmark = [pytest.mark.linux, pytest.mark.root]

_REPORT = "import os\nreport = max(int(n) for n in os.listdir('/proc/self/fd'))\nassert report >= 1000\n"
# What is done to the pipe for the exit code, and the exit code that follows.
REPORTS = {
    "closed": (_REPORT + "os.close(report)\nprint('on')\nos._exit(5)\n", 5),
    "closed_before_an_ordinary_end": (_REPORT + "os.close(report)\nprint('on')\nraise SystemExit(6)\n", 6),
    "all_descriptors_closed": ("import os\nprint('on')\nos.closerange(0, 4096)\nos._exit(7)\n", 7),
    "forged": (_REPORT + "print('on')\nos.write(report, b'\\x09')\nos.kill(os.getpid(), 19)\n", 9),
    "forged_twice": (_REPORT + "print('on')\nos.write(report, b'\\x03\\x04' * 100)\nimport time\ntime.sleep(60)\n", 3),
    "flooded": (
        _REPORT + "print('on')\nos.set_blocking(report, False)\n"
        "try:\n    while True: os.write(report, b'\\0' * 65536)\nexcept BlockingIOError: pass\nos._exit(4)\n",
        None,
    ),
    "given_to_a_child_that_lives_on": (
        _REPORT
        + "if os.fork() == 0:\n    os.setsid()\n    import time\n    time.sleep(60)\nprint('on')\nos._exit(8)\n",
        8,
    ),
    "written_by_a_child": (
        _REPORT + "print('on', flush=True)\nif os.fork() == 0:\n    os.write(report, b'\\x02')\n    os._exit(1)\n"
        "import time\ntime.sleep(60)\n",
        2,
    ),
    "replaced": (_REPORT + "os.dup2(1, report)\nprint('on')\nos._exit(3)\n", 3),
    "replaced_by_a_file_before_an_ordinary_end": (
        _REPORT + "f = open('x', 'w')\nos.dup2(f.fileno(), report)\nprint('on')\n",
        0,
    ),
    "taken_away_by_a_child": (
        _REPORT + "if os.fork() == 0:\n    try:\n        again = os.open(f'/proc/self/fd/{report}', os.O_RDWR)\n"
        "        while True: os.read(again, 1)\n    except OSError: os._exit(0)\n"
        "import time\ntime.sleep(0.2)\nprint('on')\nos._exit(6)\n",
        6,
    ),
    "taken_away_before_an_ordinary_end": (
        _REPORT + "import threading\ndef take():\n    try:\n"
        "        again = os.open(f'/proc/self/fd/{report}', os.O_RDWR)\n        while True: os.read(again, 1)\n"
        "    except OSError: pass\nthreading.Thread(target=take, daemon=True).start()\nprint('on')\nraise SystemExit(9)\n",
        9,
    ),
}


@pytest.mark.parametrize("name", REPORTS)
def test_exit_code_of_a_program_that_abuses_its_report_is_its_own_doing(name: str, pooled: RunningServer) -> None:
    code, expected = REPORTS[name]
    until_warm(pooled)
    result = execute(pooled, code, limits={"timeout_seconds": 20})
    assert result["stdout"] == "on\n", result
    assert result["outcome"] == "exited"
    if expected is not None:
        assert result["exit_code"] == expected
    assert execute(pooled, "print('next')")["stdout"] == "next\n"


_LINGER = """
import array, os, socket, struct
report = max(int(n) for n in os.listdir("/proc/self/fd"))
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
client.setblocking(False)
try:
    while True: client.send(b"x" * 65536)
except BlockingIOError: pass
sent = []
for fd in range(2000):
    try:
        line = socket.socket(fileno=fd)
        line.sendmsg([b"x" * 40], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [client.fileno()]))])
        sent.append(fd)
    except OSError: pass
print(sent)
"""


def test_no_descriptor_of_a_program_can_be_sent_to_the_server(pooled: RunningServer) -> None:
    """Closing such a connection takes a minute, whoever closes it last."""
    until_warm(pooled)
    result = execute(pooled, _LINGER + "os._exit(0)\n", limits={"timeout_seconds": 20})
    assert result["timings"]["start"] == "warm"
    # Its own sockets may take them, and nothing beside.
    own = "import socket\na = socket.socket(socket.AF_UNIX)\nprint('ok')\n"
    assert result["stdout"] == "[]\n", result
    begun = time.monotonic()
    assert execute(pooled, own)["stdout"] == "ok\n"
    assert time.monotonic() - begun < 30


_OVER_THE_CHANNEL = """
import array, ctypes, os, socket, struct, time
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
client.setblocking(False)
try:
    while True: client.send(b"x" * 65536)
except BlockingIOError: pass
line = socket.socket(socket.AF_UNIX)
path = struct.pack("H", 1) + b"/run/agentbox/channel\\0"
assert ctypes.CDLL(None).connect(line.fileno(), path, len(path)) == 0
fd = client.detach()
line.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
os.close(fd)
print("ready", flush=True)
time.sleep(60)
"""


def test_server_goes_on_when_a_guard_s_listener_is_sent_a_connection_that_lingers(pooled: RunningServer) -> None:
    with running(pooled, _OVER_THE_CHANNEL, policy="read: .\nwrite: ."):
        assert execute(pooled, "print('beside')")["stdout"] == "beside\n"


@pytest.mark.parametrize("way", [*WAYS, "cold"])
def test_no_socket_of_a_box_lingers(way: str, pooled: RunningServer, unpooled: RunningServer) -> None:
    code = """
import socket, struct
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
print(struct.unpack("ii", s.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))[0], s.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR))
"""
    assert said(unpooled if way == "cold" else pooled, code, way) == "0 1\n"


INIT = {
    "every_signal_to_init": "import os\nfor n in range(1, 65):\n    try: os.kill(1, n)\n    except OSError: pass\nprint('on')\n",
    "kill_everything": "import os\nprint('on', flush=True)\nos.kill(-1, 9)\n",
    "limits_of_init": "import resource\nfor what, value in ((0, 0), (7, 0), (6, 0), (9, 0)):\n"
    "    try: resource.prlimit(1, what, (value, value))\n    except OSError: pass\nprint('on')\n",
    "memory_of_init": "import os\nfor n in ('mem', 'maps', 'environ', 'fd', 'cwd', 'root', 'exe', 'ns/net'):\n    try:\n"
    "        os.listdir('/proc/1/fd') if n == 'fd' else os.open('/proc/1/' + n, 0)\n        print(n)\n    except OSError: pass\nprint('on')\n",
    "stop_itself": "import os\nprint('on', flush=True)\nif os.fork() == 0:\n    os.kill(os.getppid(), 9)\n    os._exit(0)\nos.kill(os.getpid(), 19)\n",
}


@pytest.mark.parametrize("name", INIT)
def test_init_of_a_box_is_beyond_its_program(name: str, pooled: RunningServer) -> None:
    until_warm(pooled)
    result = execute(pooled, INIT[name], limits={"timeout_seconds": 20})
    assert result["stdout"] == "on\n", result
    assert result["outcome"] in ("exited", "killed")
    assert execute(pooled, "print('next')")["stdout"] == "next\n"


GREEDY = {
    "forks": (
        "import os\ntry:\n    while True:\n        if os.fork() == 0: continue\nexcept OSError: os._exit(1)\n",
        {"pids": 32},
    ),
    "threads": (
        "import os, threading, time\ntry:\n    while True: threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "except RuntimeError: os._exit(1)\n",
        {"pids": 32},
    ),
    "memory": ("x = []\nwhile True: x.append(bytearray(1 << 20))\n", {"memory_mb": 64}),
    "shared_memory": (
        "i = 0\nwhile True:\n    open(f'/dev/shm/{i}', 'wb').write(bytes(1 << 20)); i += 1\n",
        {"disk_mb": 256, "memory_mb": 64},
    ),
    "disk": ("f = open('x', 'wb')\nwhile True: f.write(bytes(1 << 20))\n", {"disk_mb": 256}),
    "inodes": ("i = 0\nwhile True:\n    open(f'/tmp/{i}', 'w'); i += 1\n", {}),
    "descriptors": ("import os\nwhile True: os.dup(0)\n", {}),
    "memfds": (
        "import os\nn = []\nwhile True:\n    n.append(os.memfd_create('x')); os.write(n[-1], bytes(1 << 20))\n",
        {"memory_mb": 64},
    ),
    "pipes": ("import os\nwhile True: os.pipe()\n", {}),
    "output": ("import sys\nwhile True: sys.stdout.write('x' * 65536)\n", {"timeout_seconds": 2}),
    "daemons": (
        "import os, time\nfor _ in range(20):\n    if os.fork() == 0:\n        os.setsid(); time.sleep(60); os._exit(0)\n",
        {},
    ),
    "stopped": ("import os\nos.kill(os.getpid(), 19)\n", {"timeout_seconds": 1}),
}


def test_greedy_programs_end_and_leave_nothing(pooled: RunningServer) -> None:
    until_warm(pooled)
    with leaves_nothing(pooled):
        for name, (code, limits) in GREEDY.items():
            result = execute(pooled, code, limits={"timeout_seconds": 20, **limits})
            assert result["outcome"] in ("exited", "oom_killed", "timed_out", "output_limited", "killed"), name
            assert result["outcome"] != "timed_out" or limits.get("timeout_seconds", 20) < 5, (name, result)
        until_warm(pooled)
    assert execute(pooled, "print('next')")["stdout"] == "next\n"


_MEETING = """
import ctypes, os, socket, sys, time
key, part = int(sys.argv[1]), sys.argv[2]
libc = ctypes.CDLL(None, use_errno=True)
found = []
if part == "leave":
    open("/tmp/meeting", "w").write("x"); open("/dev/shm/meeting", "w").write("x"); open("/work/meeting", "w").write("x")
    abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0meeting"); abstract.listen(1)
    tcp = socket.create_server(("127.0.0.1", 7777))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(("127.0.0.1", 7778))
    shm = libc.shmget(key, 4096, 0o1666); sem = libc.semget(key, 1, 0o1666); queue = libc.msgget(key, 0o1666)
    memory = os.memfd_create("meeting")
    os.environ["MEETING"] = "x"
    import builtins, json
    builtins.meeting = json.meeting = True
    print("ready", flush=True); time.sleep(60)
else:
    for path in ("/tmp/meeting", "/dev/shm/meeting", "/work/meeting"):
        if os.path.exists(path): found.append(path)
    for family, address in ((socket.AF_UNIX, "\\0meeting"), (socket.AF_INET, ("127.0.0.1", 7777))):
        try:
            socket.socket(family).connect(address); found.append(str(address))
        except OSError: pass
    found += [n for n, got in (("shm", libc.shmget(key, 4096, 0)), ("sem", libc.semget(key, 1, 0)), ("msg", libc.msgget(key, 0))) if got >= 0]
    import builtins, json
    found += [n for n, there in (("env", "MEETING" in os.environ), ("builtins", hasattr(builtins, "meeting")), ("json", hasattr(json, "meeting"))) if there]
    found += [n for n in os.listdir("/proc") if n.isdigit() and int(n) not in (1, os.getpid())]
    found += [line for line in open("/proc/net/tcp").read().splitlines()[1:]]
    found += [n for n in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + n) and "meeting" in os.readlink("/proc/self/fd/" + n)]
    print(found)
"""


def test_runs_of_one_interpreter_at_once_and_one_after_another_see_nothing_of_each_other(pooled: RunningServer) -> None:
    until_warm(pooled)
    answers = []
    leaver = threading.Thread(
        target=lambda: answers.append(execute(pooled, _MEETING, args=["4711", "leave"], limits={"timeout_seconds": 8}))
    )
    leaver.start()
    beside = execute(pooled, _MEETING, args=["4711", "look"])
    leaver.join()
    after = execute(pooled, _MEETING, args=["4711", "look"])
    assert answers[0]["stdout"] == "ready\n"
    for result in (beside, after, answers[0]):
        assert result["timings"]["start"] in ("warm", "forked")
    assert (beside["stdout"], after["stdout"]) == ("[]\n", "[]\n")


def test_many_runs_at_once_each_get_their_own_answer(pooled: RunningServer) -> None:
    def one(number: int) -> tuple[str, int]:
        result = execute(pooled, "import sys\nprint(sys.argv[1])\nsys.exit(int(sys.argv[1]) % 7)", args=[str(number)])
        return result["stdout"], result["exit_code"]

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(one, range(120))) == [(f"{n}\n", n % 7) for n in range(120)]
    until(lambda: execute(pooled, "print(1)")["timings"]["start"] == "warm", "the stock is not filled again")
