# SPDX-License-Identifier: MIT
# ruff: noqa: E501 - programs of the guest are kept on a line each
"""Programs that look at clocks, draw random numbers and do several things at once, recorded and replayed."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import pythons
from tests.policy_run import AGENTBOX, PolicyRun, Project, new_project

pytestmark = pytest.mark.linux

POLICY = ("read: ./data", "write: ./out")
SEEN = """\
import datetime, email.utils, gzip, io, logging, os, random, secrets, sys, tempfile, time, timeit, unittest, uuid, zipfile
from time import time as now, monotonic
class Timer:
    clock, parts = time.time, time.localtime
    def go(self): return self.clock(), self.parts(0).tm_year
print(Timer().go(), now(), monotonic(), time.time_ns(), time.perf_counter(), time.process_time_ns())
print(datetime.datetime.now(), datetime.datetime.now(datetime.timezone.utc), datetime.date.today(), datetime.datetime.today())
print(time.localtime()[:6], time.gmtime()[:6], time.ctime(), time.asctime(), time.strftime("%c"), email.utils.formatdate())
logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(created)f %(message)s"); logging.warning("logged")
packed = io.BytesIO()
with zipfile.ZipFile(packed, "w") as archive: archive.writestr("a", "b")
print(gzip.compress(b"x").hex(), packed.getvalue().hex(), timeit.timeit("pass", number=9))
class Case(unittest.TestCase):
    def test_it(self): time.sleep(0.001)
unittest.TextTestRunner(stream=sys.stdout).run(unittest.defaultTestLoader.loadTestsFromTestCase(Case))
print(random.random(), random.gauss(0, 1), random.sample(range(100), 5), random.Random().random(), random.SystemRandom().random())
print(uuid.uuid4(), uuid.uuid1(), secrets.token_urlsafe(), os.urandom(5), os.urandom(3000)[-4:], {"alpha", "beta", "gamma"})
print(tempfile.mktemp(), tempfile.mkdtemp(), tempfile.NamedTemporaryFile(dir="out").name, os.getpid())
names = [f"out/{uuid.uuid4().hex}" for _ in range(3)]
for name in names:
    with open(name, "w") as file: file.write(f"{time.time()}")
print([sorted(os.listdir("out")) == os.listdir("out"), open(names[0]).read()])
"""
AT_ONCE = """\
import asyncio, concurrent.futures as cf, os, queue, random, threading, time, uuid
from multiprocessing.pool import ThreadPool
out = {}
def work(k):
    time.sleep((k * 7 % 5) * 0.004)
    out[k] = (random.random(), time.time(), uuid.uuid4().hex, random.gauss(0, 1))
threads = [threading.Thread(target=work, args=(k,), name="same") for k in range(5)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sorted(out.items()))
def call(k):
    time.sleep((k * 7 % 5) * 0.003); return k, time.time(), random.random(), os.urandom(3).hex()
with cf.ThreadPoolExecutor(3) as pool:
    print(list(pool.map(call, range(9))), [one.result() for one in [pool.submit(call, k) for k in range(5)]])
with ThreadPool(3) as pool: print(pool.map(call, range(7)), pool.apply(call, (3,)))
async def task(i):
    await asyncio.sleep((i * 3 % 4) * 0.01)
    first = i, time.time(), random.random(), uuid.uuid4().hex
    second = await asyncio.get_running_loop().run_in_executor(None, call, i)
    return first, second, await asyncio.gather(*[part(j) for j in range(2)])
async def part(j):
    await asyncio.sleep(0.002 * (2 - j)); return random.random(), time.monotonic()
async def main():
    print(await asyncio.gather(*[task(i) for i in range(4)]))
    try: await asyncio.wait_for(asyncio.sleep(30), 0.02)
    except asyncio.TimeoutError: print("timeout", time.time())
asyncio.run(main())
items = queue.Queue()
def produce():
    for i in range(5): items.put((i, time.time())); time.sleep(0.001)
    items.put(None)
thread = threading.Thread(target=produce); thread.start()
while (item := items.get()) is not None: print(item, time.monotonic())
try: items.get(timeout=0.02)
except queue.Empty: print("empty", random.random(), time.time(), flush=True)
for i in range(2):
    if not os.fork():
        print("child", i, time.time(), random.random(), uuid.uuid4(), flush=True); os._exit(0)
    os.wait()
"""


@dataclass
class Replay:
    """A run of agent.py and a replay of it."""

    project: Project
    recorded: PolicyRun

    def again(self, *options: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, report and stdout of a replay."""
        done = subprocess.run(
            [*AGENTBOX, "replay", "--json", *options],
            cwd=self.project.directory,
            env=self.project.environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        reports = [json.loads(line) for line in done.stderr.splitlines() if line.startswith('{"')]
        return done.returncode, reports[0] if reports else {}, done.stdout


def record(directory: Path, agent: str, *words: str, python: str, options: tuple[str, ...] = ()) -> Replay:
    project = new_project(directory)
    project.policy(*POLICY)
    project.file("data/notes.txt", "notes\n")
    (project.directory / "out").mkdir()
    project.file("agent.py", agent)
    return Replay(project, project.run(python, "-W", "ignore", *words, "agent.py", options=options))


@pytest.fixture(params=pythons.versions(), ids=pythons.name)
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("agent", [SEEN, AT_ONCE], ids=["one lane", "many lanes"])
def test_replay_sees_the_same_clocks_and_the_same_chance(tmp_path: Path, python: str, agent: str) -> None:
    made = record(tmp_path, agent, python=python)
    assert made.recorded.exit_code == 0, made.recorded.stderr
    code, report, stdout = made.again()
    assert (code, report["divergences"]) == (0, [])
    # The last line is the summary of the recorded run.
    assert stdout.splitlines() == made.recorded.text.splitlines()[:-1]


def test_busy_loop_replays_and_does_not_fill_the_trace(tmp_path: Path, python: str) -> None:
    agent = (
        "import time\nlast = seen = 0\nwhile seen < 300000:\n    now = time.monotonic(); seen += 1\n"
        "    assert now >= last; last = now\nprint(last)\n"
    )
    made = record(tmp_path, agent, python=python)
    assert made.project.traces()[0].stat().st_size < 2_000_000
    assert made.again()[0] == 0


def test_other_clock_use_is_found_where_it_is(tmp_path: Path, python: str) -> None:
    agent = "import os, time\ntime.time()\nopen('out/a', 'w').close()\ntime.time()\ntime.monotonic()\ntime.time()\n"
    made = record(tmp_path, agent, python=python)
    made.project.file("agent.py", agent.replace("time.monotonic()", "time.perf_counter()"))
    code, report, _ = made.again()
    first = report["divergences"][0]
    assert code == 1
    assert "recorded time.monotonic, but the program does time.perf_counter" in first["message"]
    assert (first["file"], first["line"]) == (str(made.project.directory / "agent.py"), 5)
    calls = [one["i"] for one in made.recorded.records if one["op"] == "clock.values"]
    assert first["step"] == calls[-1]


def test_live_clocks_are_recorded_as_such_and_differ(tmp_path: Path) -> None:
    made = record(
        tmp_path, "import time, random\nprint(time.time_ns(), random.random())\n", python="/usr/bin/python3",
        options=("--live-clocks",),
    )  # fmt: skip
    assert made.recorded.records[0]["args"]["clocks"] == "live"
    code, report, _ = made.again()
    assert code == 1
    assert [one["kind"] for one in report["divergences"]] == ["output"]
    assert any("--live-clocks" in note for note in report["notes"])


def test_python_without_a_guard_is_said_not_to_be_recorded(tmp_path: Path) -> None:
    made = record(
        tmp_path, "import time\nprint(time.time())\n", "-I", "-S", python="/usr/bin/python3", options=("--json",)
    )
    summary = json.loads(made.recorded.stderr.splitlines()[-1])
    assert "clocks and randomness are not recorded: -I starts Python without" in summary["notes"][0]
    assert made.recorded.records[0]["args"]["clocks"] == "unrecorded"
    assert made.again()[0] == 2
