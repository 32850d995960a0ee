# SPDX-License-Identifier: MIT
"""Programs that take more than their limits allow, one kind a test, under every standing of the server."""

from __future__ import annotations

import pytest

from tests.adversarial.conftest import Jail
from tests.adversarial.guests import execute, output_of
from tests.adversarial.host_state import leaves_nothing
from tests.conftest import not_here

_TOUCH = "def touch(mb):\n    b = bytearray(mb << 20)\n    b[::4096] = b'\\1' * len(b[::4096])\n    return b\n"
_FILL = (
    "def fill(path, mb):\n    n = 0\n    try:\n        with open(path, 'wb', buffering=0) as f:\n"
    "            while n < mb:\n                n += f.write(b'\\1' * (1 << 20)) >> 20\n"
    "    except OSError:\n        pass\n    return n\n"
)

MEMORY = {
    "one_process": _TOUCH + "kept = [touch(20) for _ in range(20)]",
    "many_children": _TOUCH
    + "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        kept = touch(50)\n        time.sleep(60)\n"
    "time.sleep(60)",
    "a_locked_mapping": "import ctypes, mmap\nlibc = ctypes.CDLL(None)\nlibc.mlockall(3)\nkept = []\n"
    "while len(kept) < 100:\n    m = mmap.mmap(-1, 4 << 20)\n    m[::4096] = b'\\1' * 1024\n    kept.append(m)",
    "a_mapping_with_huge_pages": "import mmap\nm = mmap.mmap(-1, 400 << 20)\nm.madvise(14)\n"
    "for i in range(0, len(m), 4096):\n    m[i] = 1",
    "many_threads": _TOUCH + "import threading\nkept = []\n"
    "ts = [threading.Thread(target=lambda: kept.append(touch(40))) for _ in range(10)]\n"
    "[t.start() for t in ts]\n[t.join() for t in ts]",
}


@pytest.mark.parametrize("shape", MEMORY)
def test_memory_beyond_the_limit_ends_as_oom_killed(shape: str, jail: Jail) -> None:
    limits = {"memory_mb": 96, "timeout_seconds": 30, "disk_mb": 64}
    result = execute(jail.server, MEMORY[shape] + "\nprint('all of it')", limits=limits)
    assert "all of it" not in result["stdout"]
    assert result["oom_killed"], result
    assert (result["outcome"], result["exit_code"], result["signal"]) == ("oom_killed", 137, 9)


def test_files_in_memory_count_to_the_disk_and_not_beyond(jail: Jail) -> None:
    code = _FILL + "print(sum(fill(d + '/fill', 100) for d in ('/dev/shm', '/tmp', '/work')))"
    written = int(output_of(jail.server, code, limits={"memory_mb": 128, "disk_mb": 48}))
    assert 40 <= written <= 48


def test_full_disk_and_memory_up_to_the_limit_go_together(jail: Jail) -> None:
    code = _TOUCH + _FILL + "n = fill('/tmp/fill', 100)\nkept = touch(60)\nprint(n >= 50)"
    assert output_of(jail.server, code, limits={"memory_mb": 128, "disk_mb": 64}) == "True\n"


def test_full_disk_gives_no_memory_beyond_the_limit(jail: Jail) -> None:
    """tmpfs pages are charged to the same control group: what the disk does not use is no memory either."""
    code = _TOUCH + "kept = [touch(16) for _ in range(11)]\nimport time\ntime.sleep(2)\nprint('kept')"
    result = execute(jail.server, code, limits={"memory_mb": 96, "disk_mb": 256})
    assert (result["outcome"], result["oom_killed"]) == ("oom_killed", True), result


def held_by(jail: Jail) -> str:
    return str(execute(jail.server, "1")["enforcement"]["memory"])


def test_shared_memory_segments_do_not_escape_the_limits(jail: Jail) -> None:
    code = (
        "import ctypes, mmap, os\nlibc = ctypes.CDLL(None)\nlibc.shmat.restype = ctypes.c_void_p\nn = 0\n"
        "for _ in range(100):\n    s = libc.shmget(0, 8 << 20, 0o1600)\n    if s < 0: break\n"
        "    a = libc.shmat(s, None, 0)\n    ctypes.memset(a, 1, 8 << 20)\n    n += 8\nprint(n)"
    )
    result = execute(jail.server, code, limits={"memory_mb": 96, "disk_mb": 32, "timeout_seconds": 30})
    assert result["oom_killed"] or int(result["stdout"] or 0) <= 128, result


def test_anonymous_files_do_not_escape_the_limits(jail: Jail) -> None:
    if jail.standing.name == "user" and held_by(jail) != "kernel":
        not_here("pages that no process maps are counted by a memory control group alone")
    code = (
        "import os\nfds = []\nn = 0\nblock = b'\\1' * (1 << 20)\n"
        "for _ in range(8):\n    fd = os.memfd_create('x')\n    fds.append(fd)\n"
        "    for _ in range(50):\n        n += os.write(fd, block) >> 20\nprint(n)"
    )
    result = execute(jail.server, code, limits={"memory_mb": 96, "disk_mb": 32, "timeout_seconds": 30})
    assert result["oom_killed"] or int(result["stdout"] or 0) <= 128, result


def test_reading_much_from_files_is_no_memory_of_the_program(jail: Jail) -> None:
    """Page cache is given back by the kernel; a program that only reads must not be killed for it."""
    code = (
        "import os\nn = 0\nfor d, _, names in os.walk('/usr/lib'):\n    for name in names:\n"
        "        try:\n            with open(os.path.join(d, name), 'rb') as f: n += len(f.read(4 << 20))\n"
        "        except OSError: pass\n    if n > 300 << 20: break\nprint('read')"
    )
    assert output_of(jail.server, code, limits={"memory_mb": 64, "disk_mb": 16, "timeout_seconds": 60}) == "read\n"


def test_child_killed_for_its_memory_is_told_although_the_parent_ends_well(jail: Jail) -> None:
    code = (
        _TOUCH
        + "import os\npid = os.fork()\nif pid == 0:\n    kept = [touch(16) for _ in range(40)]\n    os._exit(0)\n"
        "print(os.WTERMSIG(os.waitpid(pid, 0)[1]))"
    )
    result = execute(jail.server, code, limits={"memory_mb": 96, "disk_mb": 1})
    assert result["oom_killed"], result
    if result["outcome"] == "exited":
        assert (result["exit_code"], result["stdout"]) == (0, "9\n")
    else:
        # Without a memory cgroup nobody but the whole box can be killed; nor where the watch is faster.
        assert result["outcome"] == "oom_killed"


def test_fork_bomb_meets_the_limit_and_the_next_run_works(jail: Jail) -> None:
    code = (
        "import os, time\nn = 0\ntry:\n    while n < 600:\n        if os.fork() == 0:\n            time.sleep(30)\n"
        "            os._exit(0)\n        n += 1\nexcept OSError:\n    pass\nprint(n)"
    )
    with leaves_nothing(jail.server):
        assert int(output_of(jail.server, code, limits={"pids": 20})) == 19
        assert output_of(jail.server, "print(1)") == "1\n"


def test_fork_bomb_of_a_shell_ends_with_its_run(jail: Jail) -> None:
    with leaves_nothing(jail.server):
        execute(jail.server, "bomb() { bomb | bomb & }; bomb; sleep 1", "bash", limits={"pids": 40})
        result = execute(
            jail.server, "while :; do (while :; do :; done) & done", "bash", limits={"pids": 40, "timeout_seconds": 2}
        )
        assert result["outcome"] in ("timed_out", "exited")
        assert output_of(jail.server, "print(1)") == "1\n"


def test_threads_count_as_processes(jail: Jail) -> None:
    code = (
        "import threading\nstop = threading.Event()\nn = 0\ntry:\n    while n < 300:\n"
        "        threading.Thread(target=stop.wait, daemon=True).start()\n        n += 1\n"
        "except RuntimeError:\n    pass\nprint(n)\nstop.set()"
    )
    assert int(output_of(jail.server, code, limits={"pids": 20})) == 19


def test_inodes_run_out_before_the_host_is_slow(jail: Jail) -> None:
    code = (
        "import os\nn = 0\ntry:\n    for n in range(200000):\n        os.close(os.open(f'f{n}', os.O_CREAT))\n"
        "except OSError:\n    pass\nprint(n)"
    )
    with leaves_nothing(jail.server):
        assert int(output_of(jail.server, code, limits={"disk_mb": 8, "timeout_seconds": 60})) < 5000


def test_twenty_thousand_files_and_a_deep_tree_are_removed(jail: Jail) -> None:
    code = (
        "import os\nos.mkdir('many')\nfor n in range(20000):\n    os.close(os.open(f'many/{n}', os.O_CREAT))\n"
        "for _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\nprint('made')"
    )
    with leaves_nothing(jail.server):
        assert output_of(jail.server, code, limits={"timeout_seconds": 60}) == "made\n"


def test_sparse_file_of_ten_gigabytes_takes_no_space_and_no_time(jail: Jail) -> None:
    code = "import os\nos.truncate(os.open('big', os.O_RDWR | os.O_CREAT), 10 << 30)\nprint(os.stat('big').st_blocks)"
    with leaves_nothing(jail.server):
        assert output_of(jail.server, code) == "0\n"


def test_snapshot_of_a_sparse_file_of_ten_gigabytes_is_bounded(jail: Jail) -> None:
    code = "import os\nos.truncate(os.open('big', os.O_RDWR | os.O_CREAT), 10 << 30)"
    with leaves_nothing(jail.server), jail.server.client() as client:
        response = client.post("/v1/run", json={"code": code, "snapshot": True, "return_files": ["big"]})
        assert response.status_code < 500, response.text
        assert client.get("/health").status_code == 200


def test_open_files_run_out_inside_and_not_in_the_server(jail: Jail) -> None:
    code = (
        "import os\nkept = []\ntry:\n    while len(kept) < 20000:\n        kept.append(os.pipe())\n"
        "except OSError as error:\n    print(error.errno, len(kept) < 3000)"
    )
    with leaves_nothing(jail.server):
        assert output_of(jail.server, code, limits={"memory_mb": 256}) == "24 True\n"


def test_program_may_close_its_streams_and_work_on(jail: Jail) -> None:
    code = "import os, time\nfor fd in (0, 1, 2):\n    os.close(fd)\ntime.sleep(0.5)\nos._exit(7)"
    result = execute(jail.server, code)
    assert (result["outcome"], result["exit_code"], result["stdout"], result["stderr"]) == ("exited", 7, "", "")
    assert result["duration_ms"] >= 500


@pytest.mark.parametrize("code", [124, 137, 143, 255])
def test_exit_code_of_the_program_is_not_taken_for_a_kill(code: int, jail: Jail) -> None:
    result = execute(jail.server, f"import os\nos._exit({code})")
    assert (result["status"], result["outcome"], result["exit_code"]) == (200, "exited", code)
    assert (result["signal"], result["oom_killed"]) == (None, False)


@pytest.mark.parametrize("number", [9, 15, 11, 6])
def test_program_that_ends_itself_by_a_signal_is_told_so(number: int, jail: Jail) -> None:
    result = execute(jail.server, f"import os\nprint('before')\nos.kill(os.getpid(), {number})")
    assert (result["outcome"], result["exit_code"], result["signal"]) == ("exited", 128 + number, number)
    assert (result["stdout"], result["oom_killed"]) == ("before\n", False)


def test_input_is_at_its_end_at_once(jail: Jail) -> None:
    code = "import sys\ntry:\n    input()\nexcept EOFError:\n    print('EOF', sys.stdin.read() == '')"
    assert output_of(jail.server, code) == "EOF True\n"


def test_timeout_keeps_what_was_said_before(jail: Jail) -> None:
    code = (
        "import signal, sys, time\nfor n in (1, 2, 3, 14, 15, 24):\n    signal.signal(n, signal.SIG_IGN)\n"
        "print('one')\nsys.stdout.write('two-without-newline')\nsys.stdout.flush()\nsys.stderr.write('told')\n"
        "while True:\n    pass"
    )
    with leaves_nothing(jail.server):
        result = execute(jail.server, code, limits={"timeout_seconds": 1})
    assert (result["status"], result["outcome"]) == (408, "timed_out")
    assert (result["stdout"], result["stderr"]) == ("one\ntwo-without-newline", "told")
    assert not result["oom_killed"]


def test_processor_time_is_shared_out_where_a_control_group_can(jail: Jail) -> None:
    code = (
        "import os, time\nfor _ in range(3):\n    if os.fork() == 0: break\nend = time.monotonic() + 1\n"
        "while time.monotonic() < end:\n    pass"
    )
    result = execute(jail.server, code, limits={"cpus": 0.2})
    if result["enforcement"]["cpu"] == "none":
        assert jail.standing.name == "user"
    else:
        assert result["usage"]["cpu_ms"] < 700


def test_every_byte_value_comes_back(jail: Jail) -> None:
    import base64

    code = (
        "import os\nos.write(1, bytes(range(256)) + b'\\xed\\xa0\\x80\\xc0\\x80\\x1b]0;t\\x07')\nos.write(2, b'\\x80')"
    )
    result = execute(jail.server, code)
    expected = bytes(range(256)) + b"\xed\xa0\x80\xc0\x80\x1b]0;t\x07"
    assert base64.b64decode(result["stdout_base64"]) == expected
    assert base64.b64decode(result["stderr_base64"]) == b"\x80"


@pytest.mark.parametrize("size", [150 << 10, 3 << 20])
def test_long_code_reaches_the_interpreter(size: int, jail: Jail) -> None:
    assert output_of(jail.server, f"x = '{'a' * size}'\nprint(len(x))", limits={"memory_mb": 256}) == f"{size}\n"


@pytest.mark.parametrize("field", ["timeout_seconds", "memory_mb", "cpus", "pids", "disk_mb", "max_output_bytes"])
def test_limits_at_the_edges_are_refused_or_held(field: str, jail: Jail) -> None:
    values = (
        "0",
        "-1",
        "NaN",
        "Infinity",
        "1e308",
        "99999999999999999999",
        '"5"',
        '"abc"',
        "true",
        "null",
        "[]",
        "0.0001",
    )
    with jail.server.client() as client:
        for value in values:
            text = f'{{"code":"print(1)","limits":{{"{field}":{value}}}}}'
            response = client.post("/v1/run", content=text, headers={"Content-Type": "application/json"})
            assert response.status_code in (200, 400, 408, 422), (value, response.text)
            if response.status_code == 200:
                assert 0 < response.json()["limits_applied"][field] < 1 << 41
