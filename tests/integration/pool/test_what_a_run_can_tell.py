# SPDX-License-Identifier: MIT
# ruff: noqa: E501
"""What runs of one warm interpreter share and what not, and what a program can tell: docs/guide/warm-pool.md says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.pool.conftest import Run, runner_of, until_warm
from tests.running_server import RunningServer

WARM = {"warm", "forked"}
DRAWS = {
    "random": "import random\nprint(random.random(), random.getrandbits(64))\n",
    "random_of_an_instance": "import random\nprint(random.Random().random(), random.SystemRandom().random())\n",
    "shuffle": "import random\nx = list(range(99))\nrandom.shuffle(x)\nprint(x)\n",
    "uuid4": "import uuid\nprint(uuid.uuid4())\n",
    "uuid1": "import uuid\nprint(uuid.uuid1())\n",
    "secrets": "import secrets\nprint(secrets.token_hex(16))\n",
    "urandom": "import os\nprint(os.urandom(16).hex(), os.getrandom(16).hex())\n",
    "temporary_names": "import tempfile\nprint(tempfile.mktemp(), tempfile.mkdtemp())\n",
    "tls_randoms": "import ssl\nprint(ssl.RAND_bytes(16).hex())\n",
    "hashes_of_a_child": "import subprocess, sys\nprint(subprocess.check_output([sys.executable, '-c', \"print(hash('a'))\"]))\n",
    "forked_child": "import os, random\nr, w = os.pipe()\nif os.fork() == 0:\n    os.write(w, str(random.random()).encode()); os._exit(0)\n"
    "print(os.read(r, 99))\n",
}


def warm_output(run: Run, code: str, **more: Any) -> str:
    found = run(code, **more)
    assert (found["timings"]["start"] in WARM, found["exit_code"], found["stderr"]) == (True, 0, "")
    return str(found["stdout"])


@pytest.mark.parametrize("name", DRAWS)
def test_no_two_runs_draw_the_same(name: str, warm: Run) -> None:
    drawn = [warm_output(warm, DRAWS[name]) for _ in range(4)]
    assert len(set(drawn)) == len(drawn)


@pytest.fixture(scope="module")
def prepared(start_server: Callable[..., RunningServer]) -> Run:
    """A server whose warm Python has imported modules in advance; one of them is nowhere."""
    modules = "threading,random,tempfile,uuid,secrets,asyncio,multiprocessing,ctypes,logging,nowhere.to.be.found"
    server = start_server(AGENTBOX_POOL_MODULES=modules)
    run = runner_of(server, server.client())
    until_warm(run)
    assert any("nowhere.to.be.found" in line for line in server.lines)
    return run


@pytest.mark.parametrize("name", DRAWS)
def test_no_two_runs_draw_the_same_from_modules_imported_in_advance(name: str, prepared: Run) -> None:
    drawn = [warm_output(prepared, DRAWS[name]) for _ in range(4)]
    assert len(set(drawn)) == len(drawn)


def test_modules_of_the_pool_are_there_before_the_program_and_their_threads_end_with_it(prepared: Run) -> None:
    code = """
import sys
print({"threading", "random", "asyncio", "logging"} <= set(sys.modules))
import threading, multiprocessing, asyncio
def work(): print("thread")
print(threading.main_thread() is threading.current_thread(), sys.modules["__mp_main__"] is sys.modules["__main__"])
asyncio.run(asyncio.sleep(0))
threading.Thread(target=work).start()
"""
    assert warm_output(prepared, code) == "True\nTrue True\nthread\n"


def test_file_named_as_a_module_of_the_pool_is_found_only_without_the_pool(prepared: Run, cold: Run) -> None:
    more = {"files": {"random.py": "mine = True\n"}}
    code = "import random\nprint(hasattr(random, 'mine'))\n"
    assert (warm_output(prepared, code, **more), cold(code, **more)["stdout"]) == ("False\n", "True\n")


def test_hashes_of_text_are_those_of_the_interpreter_that_the_runs_of_a_key_share(warm: Run) -> None:
    assert len({warm_output(warm, "print(hash('a'))") for _ in range(3)}) == 1
    given = warm("print(hash('a'))", env={"PYTHONHASHSEED": "random"})
    assert given["timings"]["start"] == "made"


def test_parent_of_a_warm_program_is_not_visible(warm: Run) -> None:
    assert warm_output(warm, "import os\nprint(os.getppid())") == "0\n"


def test_objects_of_the_interpreter_are_not_in_the_collector_s_lists(warm: Run) -> None:
    assert (
        warm_output(warm, "import gc\nprint(gc.get_freeze_count() > 0, len(gc.get_objects()) < 2000)") == "True True\n"
    )


def test_one_more_descriptor_is_open_beyond_a_thousand_and_no_program_inherits_it(warm: Run) -> None:
    code = """
import os
print([int(n) >= 1000 for n in os.listdir("/proc/self/fd") if int(n) > 3], flush=True)
os.system("ls /proc/self/fd | wc -l")
"""
    assert warm_output(warm, code) == "[True]\n4\n"


def test_nothing_that_a_run_changed_in_its_interpreter_is_seen_by_the_next(warm: Run) -> None:
    spoil = """
import builtins, os, sys, json
builtins.print = None
os.environ["LEFT"] = "1"
os.getcwd = lambda: "spoiled"
sys.path.insert(0, "/spoiled")
json.loads = None
sys.setrecursionlimit(50)
"""
    look = "import os, sys, json\nprint(os.getcwd(), 'LEFT' in os.environ, sys.path[0], json.loads('1'), sys.getrecursionlimit())"
    assert warm(spoil)["exit_code"] == 0
    assert warm_output(warm, look) == "/work False /work 1 1000\n"
