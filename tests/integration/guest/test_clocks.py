# SPDX-License-Identifier: MIT
# ruff: noqa: E501 - programs of the guest are kept on a line each
"""What a Python program sees of clocks and randomness while it can be replayed, and what its host hears."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

import pytest

from agentbox.replay.recording import calls_of
from agentbox.trace import frames
from tests import pythons
from tests.integration.guest.guarded import Host, Outcome

POLICY = "read: ./data\nwrite: ./out\nexec: echo\nexec: true\n"
SEED = "5e" * 32
AROUND = "import os, sys, time, datetime, random, uuid, secrets, tempfile, pickle, threading\n"


@pytest.fixture(params=pythons.versions(), ids=pythons.name)
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def recorded(host: Host, python: str, code: str, **options: Any) -> Outcome:
    done = host.run(POLICY, [python, "-W", "ignore", "-c", AROUND + code], variables={"AGENTBOX_SEED": SEED}, **options)
    assert done.exit_code == 0, done.stderr
    return done


def calls(records: Sequence[frames.Request], lane: str = "main") -> list[list[Any]]:
    """The clock calls of a lane."""
    found = [call for one in records if one.op == "clock.values" and one.lane == lane for call in one.args["calls"]]
    return [one for call in found for one in calls_of(call)]


def drawn(lane: str, number: int) -> bytes:
    """Block `number` of a lane."""
    return hmac.digest(bytes.fromhex(SEED), f"{lane}\0{number}".encode(), hashlib.sha256)


def test_without_a_seed_nothing_is_another_than_it_was(host: Host, python: str) -> None:
    code = "import time, os; print(*(type(f).__name__ for f in (time.time, time.sleep, os.urandom, os.listdir)))"
    assert host.run(POLICY, [python, "-c", code]).stdout == " ".join(["builtin_function_or_method"] * 4) + "\n"


def test_clock_is_told_in_nanoseconds_and_gives_what_was_told(host: Host, python: str) -> None:
    done = recorded(
        host, python, "print(time.time_ns(), repr(time.monotonic()), repr(datetime.datetime.now().timestamp()))"
    )
    whole, seconds, moment = done.stdout.split()
    names, values = zip(*calls(done.records), strict=True)
    assert names == ("time.time_ns", "time.monotonic", "datetime.now")
    assert int(values[0]) == int(whole)
    assert int(values[1]) / 1e9 == float(seconds)
    assert round(int(values[2]) / 1e9, 6) == float(moment)


@pytest.mark.parametrize("wall", ["jail", "none"])
def test_calls_are_told_before_anything_else_of_their_lane(host: Host, python: str, wall: str) -> None:
    code = "for _ in range(3): time.time(); open('data/a.txt').read()\ntime.perf_counter()"
    done = recorded(host, python, code, wall=wall)
    wanted = [record.op for record in done.records if record.op in ("clock.values", "fs.open_read")]
    assert wanted == ["clock.values", "fs.open_read"] * 3 + ["clock.values"]


def test_every_way_to_ask_for_the_time_is_a_call(host: Host, python: str) -> None:
    code = (
        "from time import *\n"
        "time(); time_ns(); monotonic(); monotonic_ns(); perf_counter(); perf_counter_ns(); process_time(); thread_time()\n"
        "localtime(); gmtime(None); ctime(); strftime('%H'); asctime()\n"
        "localtime(0); gmtime(0.5); ctime(0); strftime('%H', gmtime(0)); asctime(gmtime(0))\n"
        "clock_gettime(CLOCK_MONOTONIC); clock_gettime_ns(CLOCK_REALTIME)\n"
        "D = datetime.datetime; D.now(); D.now(datetime.timezone.utc); D.utcnow(); D.today(); datetime.date.today()\n"
    )
    names = [name.partition(".")[2] for name, _ in calls(recorded(host, python, code).records)]
    assert names == [
        *("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time"),
        *(
            "thread_time",
            "localtime",
            "gmtime",
            "ctime",
            "strftime",
            "asctime",
            "clock_gettime.1",
            "clock_gettime.0",
            "now",
            "now",
            "utcnow",
            "time",
            "time",
        ),
    ]


def test_types_and_functions_are_what_they_were(host: Host, python: str) -> None:
    code = (
        "D = datetime.datetime\n"
        "class Sub(D): pass\n"
        "class Timer:\n"
        "    clock, wait, parts, draw, names = time.time, time.sleep, time.localtime, os.urandom, os.listdir\n"
        "    def go(self): return self.clock() > 0, self.wait(0), self.parts(0).tm_year, len(self.draw(3)), self.names('data')\n"
        "assert type(D.now()) is D and isinstance(Sub.now(), Sub) and type(Sub.utcnow()) is Sub and D is type(D.today())\n"
        "assert pickle.loads(pickle.dumps(D.now())).year > 2000 and pickle.loads(pickle.dumps(time.time)) is time.time\n"
        "assert pickle.loads(pickle.dumps(time.sleep)) is time.sleep and repr(D.now()).startswith('datetime.datetime(')\n"
        "assert D.now().tzinfo is None and D.now(tz=datetime.timezone.utc).tzinfo is datetime.timezone.utc\n"
        "assert Timer().go() == (True, None, 1970, 3, ['a.txt']), Timer().go()\n"
        "assert type(random._inst) is random.Random and random.Random(7).random() == random.Random(7).random()\n"
        "random.seed(42); assert (random.random(), random.gauss(0, 1)) == (lambda r: (r.random(), r.gauss(0, 1)))(random.Random(42))\n"
        "state = random.getstate(); one = random.random(); random.setstate(state); assert random.random() == one\n"
        "for wrong, kind in ((lambda: os.urandom(-1), ValueError), (lambda: os.urandom('x'), TypeError), (lambda: time.sleep(-1), ValueError), (lambda: D.now(5), TypeError)):\n"
        "    try: wrong(); print('went through', kind)\n"
        "    except kind: pass\n"
    )
    assert recorded(host, python, code).stdout == ""


def test_random_bytes_follow_from_seed_lane_and_number(host: Host, python: str) -> None:
    code = (
        "print(os.urandom(32).hex(), os.urandom(5).hex(), os.urandom(40).hex(), len(os.urandom(5000)), os.getrandom(4).hex())\n"
        "def more(): print(os.urandom(8).hex(), uuid.uuid4().hex)\n"
        "t = threading.Thread(target=more); t.start(); t.join(); print(os.urandom(3).hex())\n"
    )
    # What is loaded may draw first.
    plain = host.run(POLICY, [python, "-c", "import os\n" + code.split("\n")[0]], variables={"AGENTBOX_SEED": SEED})
    whole, short, long, length, last = plain.stdout.split()
    blocks = [drawn("main", number) for number in range(6)]
    first = next(number for number in range(8) if drawn("main", number).hex() == whole)
    blocks = [drawn("main", first + number) for number in range(6)]
    assert (short, long, length) == (blocks[1][:5].hex(), (blocks[2] + blocks[3])[:40].hex(), "5000")
    assert last == blocks[5][:4].hex()
    first_lines, second_lines = (recorded(host, python, code).stdout.splitlines() for _ in range(2))
    assert first_lines == second_lines
    assert first_lines[1].split()[0] == drawn("main.0", 0)[:8].hex()


def test_names_of_temporary_files_and_identifiers_come_again(host: Host, python: str) -> None:
    code = (
        "print(tempfile.mktemp(), uuid.uuid4(), uuid.getnode(), secrets.token_hex(), secrets.choice(range(10 ** 9)), random.random())\n"
        "print(random.Random().random(), random.SystemRandom().random(), random.sample(range(10 ** 6), 3), random.randbytes(4))\n"
    )
    assert recorded(host, python, code).stdout == recorded(host, python, code).stdout


def test_a_lane_draws_its_own_numbers_whatever_the_others_do(host: Host, python: str) -> None:
    code = (
        "got, ready = {}, [threading.Event() for _ in range(3)]\n"
        "def work(k):\n"
        "    ready[k].wait()\n"
        "    got[k] = (random.random(), random.gauss(0, 1), random.randint(0, 10 ** 9), tempfile.mktemp(), uuid.uuid4())\n"
        "def run(order):\n"
        "    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]\n"
        "    for thread in threads: thread.start()\n"
        "    for k in order: ready[k].set(); threads[k].join()\n"
        "    print(sorted(got.items()))\n"
    )
    first, second = (recorded(host, python, f"{code}run({order})").stdout for order in ([0, 1, 2], [2, 0, 1]))
    assert first == second


def test_each_thing_that_runs_has_a_lane_by_who_started_it(host: Host, python: str) -> None:
    code = (
        "import asyncio, _thread, concurrent.futures as cf\n"
        "def see(name): open('data/a.txt').close(); os.close(os.open(f'out/{name}', os.O_CREAT | os.O_WRONLY))\n"
        "def outer():\n"
        "    t = threading.Thread(target=see, args=('inner',), name='same'); t.start(); t.join()\n"
        "for i in range(2):\n"
        "    t = threading.Thread(target=outer, name='same'); t.start(); t.join()\n"
        "ended = threading.Event(); _thread.start_new_thread(lambda: (see('raw'), ended.set()), ()); ended.wait()\n"
        "with cf.ThreadPoolExecutor(1) as pool: pool.submit(see, 'first').result(); list(pool.map(see, ['second']))\n"
        "async def child(name): see(name)\n"
        "async def main():\n"
        "    see('task'); await asyncio.gather(child('a'), child('b'))\n"
        "    await asyncio.get_running_loop().run_in_executor(None, see, 'call')\n"
        "asyncio.run(main())\n"
        "for i in range(2):\n"
        "    if not os.fork(): see('fork'); os._exit(0)\n"
        "    os.wait()\n"
    )
    done = recorded(host, python, code, wall="jail")
    lanes = [(r.args["path"].rpartition("/")[2], r.lane) for r in done.records if r.op == "fs.open_write"]
    assert lanes == [
        *(("inner", "main.0.0"), ("inner", "main.1.0"), ("raw", "main.2")),
        *(("first", "main:0"), ("second", "main:1")),
        *(("task", "main/0"), ("a", "main/0/0"), ("b", "main/0/1"), ("call", "main/0:0")),
        *(("fork", "main~0"), ("fork", "main~1")),
    ]


def test_lane_of_many_ancestors_has_a_short_name_of_its_own(host: Host, python: str) -> None:
    code = (
        "def go(n):\n"
        "    if n: t = threading.Thread(target=go, args=(n - 1,)); t.start(); t.join()\n"
        "    else: os.close(os.open('out/x', os.O_CREAT | os.O_WRONLY))\n"
        "go(60); go(61)\n"
    )
    lanes = [r.lane for r in recorded(host, python, code).records if r.op == "fs.open_write"]
    assert all(lane is not None and len(lane) < 64 for lane in lanes)
    assert len(set(lanes)) == 2


def test_child_after_fork_repeats_nothing_of_its_parent(host: Host, python: str) -> None:
    code = (
        "time.time(); before = random.random(), os.urandom(4)\n"
        "def show(): os.write(1, f'{random.random()} {os.urandom(4).hex()} {random.Random().random()} {tempfile.mktemp()}\\n'.encode()); time.time()\n"
        "for _ in range(2):\n"
        "    if not os.fork(): show(); os._exit(0)\n"
        "    os.wait()\n"
        "show()\n"
    )
    done = recorded(host, python, code)
    assert len({word for line in done.stdout.splitlines() for word in line.split()}) == 12
    assert [len(calls(done.records, lane)) for lane in ("main", "main~0", "main~1")] == [2, 1, 1]
    assert recorded(host, python, code).stdout == done.stdout


def test_what_waits_by_a_clock_keeps_the_real_one(host: Host, python: str) -> None:
    code = (
        "import asyncio, queue, subprocess, concurrent.futures as cf\n"
        "try: queue.Queue().get(timeout=0.01)\n"
        "except queue.Empty: pass\n"
        "threading.Event().wait(0.01); subprocess.run(['true'], timeout=20); asyncio.run(asyncio.sleep(0.01))\n"
        "with cf.ThreadPoolExecutor(1) as pool: cf.wait([pool.submit(int)], timeout=10)\n"
        "print('ended')\n"
    )
    done = recorded(host, python, code, wall="jail")
    assert done.stdout == "ended\n"
    # To load `logging` is to look at a clock.
    assert {name for name, _ in calls(done.records)} <= {"time.time", "time.time_ns"}


def test_what_the_library_writes_down_is_a_call(host: Host, python: str) -> None:
    code = "import logging, gzip; logging.warning('x'); gzip.compress(b'x', mtime=None); uuid.uuid1()"
    assert len(calls(recorded(host, python, code).records)) >= 2


def test_clocks_of_a_busy_loop_go_in_steps_and_never_back(host: Host, python: str) -> None:
    code = (
        "seen = [time.perf_counter_ns() for _ in range(60000)]\n"
        "print(seen == sorted(seen), len(seen), len(set(seen)), seen[30000])\n"
    )
    done = recorded(host, python, code)
    forwards, count, different, one = done.stdout.split()
    assert (forwards, count) == ("True", "60000")
    assert int(different) < 60_000
    told = calls(done.records)
    assert sum(call[2] if len(call) > 2 else 1 for call in told) == 60_000
    assert int(one) in [int(call[1]) for call in told]


def test_directory_is_listed_in_order_of_names(host: Host, python: str) -> None:
    for name in ("9", "b", "A", "10", "a"):
        (host.project / "data" / name).write_text("")
    code = (
        "print(os.listdir('data'), [e.name for e in os.scandir('data')], os.listdir(b'data')[0], next(os.walk('data'))[2])\n"
        "with os.scandir('data') as entries: print(next(entries).name); entries.close(); print(list(entries))\n"
        "print(os.scandir in os.supports_fd, os.listdir in os.supports_fd)\n"
    )
    names = ["10", "9", "A", "a", "a.txt", "b"]
    wanted = f"{names} {names} b'10' {names}\n10\n[]\nTrue True\n"
    assert recorded(host, python, code, wall="jail").stdout == wanted


def test_seed_is_gone_from_the_environment_and_children_draw_for_themselves(host: Host, python: str) -> None:
    code = (
        "import subprocess; print('AGENTBOX_SEED' in os.environ, b'AGENTBOX_SEED' in sys.modules['posix'].environ)\n"
        "code = 'import os, sys; print(os.urandom(8).hex(), type(os.urandom).__name__)'\n"
        "for _ in range(2): sys.stdout.write(subprocess.run([sys.executable, '-c', code], stdout=-1, check=True).stdout.decode())\n"
    )
    policy = f"{POLICY}exec: {python}\n"
    done = host.run(policy, [python, "-c", AROUND + code], wall="jail", variables={"AGENTBOX_SEED": SEED})
    assert done.exit_code == 0, done.stderr
    first, one, two = done.stdout.splitlines()
    assert first == "False False"
    assert one.split()[0] != two.split()[0]
    assert one.split()[1] == "builtin_function_or_method"


def test_live_clocks_are_the_real_ones_but_lanes_are_kept(host: Host, python: str) -> None:
    code = (
        "print(type(time.time).__name__, type(os.urandom).__name__)\n"
        "t = threading.Thread(target=lambda: open('data/a.txt'), name='x'); t.start(); t.join(); time.time()"
    )
    given = {"AGENTBOX_SEED": SEED, "AGENTBOX_CLOCKS": "live"}
    done = host.run(POLICY, [python, "-c", AROUND + code], variables=given, wall="jail")
    assert done.stdout == "builtin_function_or_method builtin_function_or_method\n"
    assert [(record.op, record.lane) for record in done.records] == [("fs.open_read", "main.0")]


@pytest.mark.parametrize("given", [{"AGENTBOX_SEED": "5e"}, {"AGENTBOX_SEED": "zz" * 32}, {"AGENTBOX_CLOCKS": "slow"}])
def test_wrong_setting_ends_the_process(host: Host, python: str, given: dict[str, str]) -> None:
    done = host.run(POLICY, [python, "-c", "print('ran')"], variables={"AGENTBOX_SEED": SEED, **given})
    assert (done.exit_code, done.stdout) == (70, "")
    assert done.stderr.startswith("agentbox: failed to arm sandbox")


class Serving(Host):
    """Answers a replay from what it was given: calls by lane, in order."""

    calls: dict[str, list[list[Any]]]

    def answer(self, request: frames.Request) -> bytes:
        if request.kind == "serve" and request.op == "clock.values":
            left = self.calls.get(request.lane or "", [])
            if not left or left[0][0] != request.args["call"]:
                return frames.answer(request.id, ok=False, diverged=True, error=f"no {request.args['call']} comes here")
            self.calls[request.lane or ""] = []
            return frames.answer(request.id, result={"calls": left})
        return frames.answer(request.id)


@pytest.fixture
def serving(host: Host) -> Serving:
    made = Serving(host.base, host.project, host.guards)
    made.calls = {}
    return made


def replayed(host: Serving, python: str, code: str) -> Outcome:
    given = {"AGENTBOX_SEED": SEED, "AGENTBOX_MODE": "replay"}
    return host.run(POLICY, [python, "-c", AROUND + code], variables=given, wall="jail")


def test_replay_gives_what_was_recorded(serving: Serving, python: str) -> None:
    serving.calls = {
        "main": [
            ["time.time", "1700000000123456700"],
            ["time.monotonic", 5, 2],
            ["datetime.now", "1700000000000000000"],
        ],
        "main.0": [["time.time_ns", "17"]],
    }
    code = (
        "print(time.time(), time.monotonic(), time.monotonic(), datetime.datetime.now().timestamp())\n"
        "t = threading.Thread(target=lambda: print(time.time_ns())); t.start(); t.join(); time.sleep(10 ** 7)"
    )
    done = replayed(serving, python, code)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == "1700000000.1234567 5e-09 5e-09 1700000000.0\n17\n"


def test_other_clock_than_was_recorded_is_told_with_what_was_not_used(serving: Serving, python: str) -> None:
    serving.calls = {"main": [["time.time", 1], ["time.time", 2], ["time.time", 3]]}
    done = replayed(serving, python, "time.time()\ntime.monotonic()")
    assert "ReplayDivergence: no time.monotonic comes here" in done.stderr
    asked = [record for record in done.records if record.op == "clock.values"]
    assert [(one.args["call"], (one.at or {}).get("unused")) for one in asked] == [
        ("time.time", None),
        ("time.monotonic", 2),
    ]
    assert (asked[1].at or {})["line"] == 3


def test_calls_that_are_left_over_are_told_before_an_effect_and_at_the_end(serving: Serving, python: str) -> None:
    serving.calls = {"main": [["time.time", 1], ["time.time", 2]]}
    done = replayed(serving, python, "time.time(); os.mkdir('out/d')")
    assert [(r.op, (r.at or {}).get("unused")) for r in done.records] == [
        *(("clock.values", None), ("fs.mkdir", 1), ("clock.rest", 1)),
    ]


def test_calls_that_lie_ready_are_counted_when_something_else_comes(serving: Serving, python: str) -> None:
    serving.calls = {"main": [["time.time", number * 10**9] for number in range(400)]}
    code = "print(sum(time.time() for _ in range(300))); os.mkdir('out/d'); time.time()"
    done = replayed(serving, python, code)
    assert done.stdout == f"{sum(range(300)):.1f}\n"
    told = [(record.op, (record.at or {}).get("unused")) for record in done.records]
    assert told[1] == ("fs.mkdir", 100)


def test_calls_that_lie_ready_keep_their_order_between_clocks_threads_and_children(
    serving: Serving, python: str
) -> None:
    seconds = [["time.time", 10**9], ["time.time", 2 * 10**9]]
    serving.calls = {
        "main": [*seconds, ["time.localtime", 3 * 10**9], ["time.monotonic", 4 * 10**9, 2], *seconds, *seconds],
        "main.0": [["time.time", 7 * 10**9], ["time.time", 8 * 10**9]],
        "main~0": [["time.time", 9 * 10**9], ["time.time", 10 * 10**9]],
    }
    code = (
        "print(time.time(), time.time(), time.mktime(time.localtime()), time.monotonic(), time.monotonic())\n"
        "print(time.time(), flush=True)\n"
        "child = os.fork()\n"
        "if not child: print(time.time(), time.time(), flush=True); os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "t = threading.Thread(target=lambda: print(time.time(), time.time())); t.start(); t.join()\n"
        "print(time.time(), time.time(), time.time())"
    )
    done = replayed(serving, python, code)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["1.0 2.0 3.0 4.0 4.0", "1.0", "9.0 10.0", "7.0 8.0", "2.0 1.0 2.0"]


def test_sleep_of_a_replay_waits_where_somebody_is_there_to_be_met(serving: Serving, python: str) -> None:
    code = (
        "import signal\n"
        "def stop(*_): raise InterruptedError\n"
        "signal.signal(signal.SIGALRM, stop); signal.setitimer(signal.ITIMER_REAL, 0.01)\n"
        "try: time.sleep(50); print('slept')\n"
        "except InterruptedError: print('alarm')\n"
        "go = threading.Event(); t = threading.Thread(target=go.wait); t.start()\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "time.sleep(0.01); go.set(); t.join(); time.sleep(10 ** 7)\n"
    )
    assert replayed(serving, python, code).stdout == "alarm\n"


def test_functions_hold_nothing_of_the_guard(host: Host, python: str) -> None:
    code = (
        "import asyncio.base_events, atexit, concurrent.futures.thread, contextvars, types\n"
        "space, seen = type(sys.implementation), set()\n"
        "mine = {id(m.__dict__) for m in sys.modules.values()}\n"
        "def follow(o, depth=0):\n"
        "    if id(o) in seen or depth > 9: return\n"
        "    seen.add(id(o))\n"
        "    if isinstance(o, space) and o is not sys.implementation: print('reached', list(vars(o))[:5])\n"
        "    if isinstance(o, types.MethodType): follow(o.__func__, depth + 1); follow(o.__self__, depth + 1)\n"
        "    elif isinstance(o, types.FunctionType):\n"
        "        for cell in o.__closure__ or (): follow(cell.cell_contents, depth + 1)\n"
        "        for value in (*(o.__defaults__ or ()), *(o.__kwdefaults__ or {}).values()): follow(value, depth + 1)\n"
        "        if id(o.__globals__) not in mine: follow(o.__globals__, depth + 1)\n"
        "    elif isinstance(o, dict): [follow(v, depth + 1) for v in list(o.values())]\n"
        "    elif isinstance(o, (list, tuple, set)): [follow(v, depth + 1) for v in list(o)]\n"
        "    elif isinstance(o, property): follow(o.fget, depth + 1)\n"
        "    elif isinstance(o, classmethod): follow(o.__func__, depth + 1)\n"
        "    elif isinstance(o, contextvars.ContextVar): follow(o.get(None), depth + 1)\n"
        "async def main(): [follow(v) for v in contextvars.copy_context().items()]\n"
        "asyncio.run(main())\n"
        "for m in (time, os, random, uuid, tempfile, threading, sys.modules['_thread'], random.Random, datetime.datetime,\n"
        "          tempfile._RandomNameSequence, concurrent.futures.thread._WorkItem, asyncio.base_events.BaseEventLoop, sys.meta_path[0]):\n"
        "    for o in list(vars(m).values()): follow(o)\n"
        "follow(sys.meta_path); follow(type(sys.meta_path[0]).find_spec); print(len(seen) > 300)\n"
    )
    assert recorded(host, python, code).stdout == "True\n"
