# SPDX-License-Identifier: MIT
"""Programs that try to live on, and servers and launchers that die in the middle of runs."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.adversarial.escape.posture import Posture, processes_with
from tests.adversarial.guests import execute, output_of, running
from tests.adversarial.host_state import descendants, launcher_of, owner_groups, until
from tests.running_server import RunningServer
from tests.standing import NAMES, Standing

# Each names itself by an argument, so that the host finds whatever is left of it.
ESCAPERS = {
    "double_fork": "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(60)\n"
    "    os._exit(0)",
    "ignores_every_signal": "if os.fork() == 0:\n    for n in range(1, 32):\n"
    "        try: signal.signal(n, signal.SIG_IGN)\n"
    "        except OSError: pass\n    os.setsid()\n    while True: time.sleep(60)",
    "respawns": "def live():\n    os.setsid()\n    time.sleep(60)\n    os._exit(0)\n"
    "import ctypes\nctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\nif os.fork() == 0:\n    os.setsid()\n    while True:\n"
    "        pid = os.fork()\n        if pid == 0: live()\n        os.waitpid(pid, 0)",
    "holds_the_pipes": "if os.fork() == 0:\n    os.setsid()\n    while True:\n        time.sleep(0.01)\n"
    "        os.write(1, b'.')",
    "many_generations": "for _ in range(6):\n    if os.fork() == 0: os.setsid()\n"
    "if os.getpid() != main: time.sleep(60)",
    "hides_its_arguments": "if os.fork() == 0:\n    os.setsid()\n"
    "    os.execve('/bin/sleep', ['x', '60'], dict(os.environ))",
    "clears_its_environment": "if os.fork() == 0:\n    os.setsid()\n"
    "    os.execve('/bin/sleep', ['x', '61.' + mark], {})",
    "nohup": "import subprocess\nsubprocess.Popen(['nohup', 'setsid', 'sh', '-c', 'while :; do sleep 1; done', mark])",
    "keeps_forking": "if os.fork() == 0:\n    while True:\n        if os.fork() != 0: os._exit(0)",
}
_START = "import os, signal, sys, time\nmain, mark = os.getpid(), sys.argv[1]\n"


@pytest.fixture(scope="module", params=[*NAMES, "subprocess", "subprocess_user"])
def server(
    request: pytest.FixtureRequest, start_server: Callable[..., RunningServer], standings: Callable[[str], Standing]
) -> RunningServer:
    return start(request.param, start_server, standings)


def start(
    name: str,
    start_server: Callable[..., RunningServer],
    standings: Callable[[str], Standing],
    **more: object,
) -> RunningServer:
    """A server of its own, with backend jail or subprocess."""
    backend = "subprocess" if name.startswith("subprocess") else "jail"
    standing = standings({"subprocess": "root", "subprocess_user": "user"}.get(name, name))
    allowed = {"AGENTBOX_ALLOW_UNISOLATED": "1"} if backend == "subprocess" else {}
    return start_server(arguments=("--backend", backend), standing=standing, **allowed, **more)


def new_mark() -> str:
    return str(secrets.randbelow(10**18) + 10**18)


@pytest.mark.parametrize("escaper", ESCAPERS)
def test_nothing_of_a_run_lives_when_its_answer_is_there(escaper: str, server: RunningServer) -> None:
    mark = new_mark()
    result = execute(
        server,
        _START + ESCAPERS[escaper] + "\nprint('main is done')",
        args=[mark],
        env={"MARK": mark},
        limits={"pids": 128, "timeout_seconds": 20},
    )
    assert processes_with(mark) == []
    assert "main is done" in result["stdout"]
    assert result["outcome"] == "exited"


@pytest.mark.parametrize("escaper", ["respawns", "holds_the_pipes", "ignores_every_signal"])
def test_nothing_of_a_run_lives_after_its_deadline(escaper: str, server: RunningServer) -> None:
    mark = new_mark()
    code = _START + ESCAPERS[escaper] + "\nprint('waiting', flush=True)\ntime.sleep(60)"
    result = execute(server, code, args=[mark], env={"MARK": mark}, limits={"timeout_seconds": 1})
    assert processes_with(mark) == []
    assert result["outcome"] == "timed_out"
    assert "waiting" in result["stdout"]


@pytest.mark.parametrize("escaper", ["double_fork", "respawns"])
def test_nothing_lives_of_a_run_that_kills_its_init(escaper: str, server: RunningServer) -> None:
    """In a jail that is refused; without a wall the init is a process of the guest's own user."""
    mark = new_mark()
    code = _START + "init = os.getppid()\n" + ESCAPERS[escaper] + "\ntime.sleep(0.1)\nos.kill(init, 9)\nprint('on')"
    result = execute(server, code, args=[mark], env={"MARK": mark}, limits={"timeout_seconds": 10})
    assert processes_with(mark) == []
    assert result["outcome"] in ("exited", "killed")
    assert output_of(server, "print(1)") == "1\n"


def test_client_that_goes_away_ends_its_run(server: RunningServer) -> None:
    mark = new_mark()
    code = _START + ESCAPERS["respawns"] + "\nprint('ready', flush=True)\ntime.sleep(60)"
    with running(server, code, args=[mark], env={"MARK": mark}):
        assert processes_with(mark)
    until(lambda: processes_with(mark) == [], "a run lives on without its client")
    assert output_of(server, "print(1)") == "1\n"


@contextlib.contextmanager
def many_runs(server: RunningServer, mark: str, count: int = 20) -> Iterator[list[httpx.Response | None]]:
    """Runs in the middle of their work, each with a daemon that tries to outlive it; yields their answers-to-be."""
    code = _START + ESCAPERS["double_fork"] + "\ntime.sleep(60)"
    answers: list[httpx.Response | None] = []

    def one() -> None:
        body = {"code": code, "args": [mark], "env": {"MARK": mark}, "limits": {"memory_mb": 64, "disk_mb": 8}}
        try:
            answers.append(httpx.post(f"{server.url}/v1/run", json=body, timeout=90.0))
        except httpx.TransportError:
            answers.append(None)

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    # A program and its daemon each.
    until(lambda: len(processes_with(mark)) >= 2 * count, "the runs did not start")
    yield answers
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("name", [*NAMES, "subprocess"])
def test_killed_server_takes_its_runs_with_it_and_a_new_one_removes_the_rest(
    name: str, start_server: Callable[..., RunningServer], standings: Callable[[str], Standing]
) -> None:
    server, mark = start(name, start_server, standings), new_mark()
    family = descendants(server.pid)
    with many_runs(server, mark):
        os.kill(server.pid, signal.SIGKILL)
    server.process.wait()
    until(lambda: processes_with(mark) == [], "runs of a killed server live on")
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in family), "the launcher of a killed server lives on")
    again = start(name, start_server, standings, state=server.state_dir)
    assert owner_groups(server.pid) == []
    owners = sorted(path.name for path in (server.state_dir / "boxes").iterdir())
    assert [owner.split("-")[0] for owner in owners] == [str(again.pid)]
    assert output_of(again, "print(1)") == "1\n"
    assert again.stop() == 0


def test_runs_go_on_without_their_launcher_and_the_next_run_works(server: RunningServer) -> None:
    """A box does not need the launcher once it is built."""
    mark = new_mark()
    with many_runs(server, mark, 4) as answers:
        os.kill(launcher_of(server), signal.SIGKILL)
        assert output_of(server, "print('next')") == "next\n"
        for pid in processes_with(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    until(lambda: processes_with(mark) == [], "runs live on without their launcher")
    assert [answer.status_code if answer else None for answer in answers] == [200] * 4
    assert {answer.json()["signal"] for answer in answers if answer} == {9}


@pytest.mark.parametrize(
    ("name", "number"),
    [("root", signal.SIGTERM), ("root", signal.SIGINT), ("user", signal.SIGTERM), ("subprocess", signal.SIGTERM)],
)
def test_server_that_is_asked_to_stop_stops_amid_runs_and_leaves_nothing(
    name: str, number: int, start_server: Callable[..., RunningServer], standings: Callable[[str], Standing]
) -> None:
    server, mark = start(name, start_server, standings), new_mark()
    family = descendants(server.pid)
    with many_runs(server, mark, 6):
        code = server.stop(number)
    assert code in (0, 128 + number, -number)
    assert processes_with(mark) == []
    assert not [pid for pid in family if os.path.exists(f"/proc/{pid}")]
    assert owner_groups(server.pid) == []
    boxes = server.state_dir / "boxes"
    assert not boxes.exists() or list(boxes.iterdir()) == []


def test_init_killed_from_outside_ends_the_run_as_killed(server: RunningServer) -> None:
    mark = new_mark()
    results = []
    runner = threading.Thread(
        target=lambda: results.append(execute(server, "import time\ntime.sleep(60)", args=[mark]))
    )
    runner.start()
    until(lambda: bool(processes_with(mark)), "the run did not start")
    os.kill(Posture.of(mark).parent, signal.SIGKILL)
    runner.join()
    (result,) = results
    assert (result["outcome"], result["exit_code"], result["signal"]) == ("killed", 137, 9)
    assert not result["oom_killed"]
    assert processes_with(mark) == []
    assert output_of(server, "print(1)") == "1\n"


def test_boxes_are_built_while_others_lose_their_init(
    start_server: Callable[..., RunningServer], standings: Callable[[str], Standing]
) -> None:
    """What the launcher sweeps after a lost init is that box's alone, also with boxes of another backend around."""
    both = {"AGENTBOX_ALLOW_UNISOLATED": "1", "AGENTBOX_ALLOWED_BACKENDS": "jail,subprocess"}
    server, mark = start_server(arguments=("--backend", "jail"), standing=standings("user"), **both), new_mark()
    suicide = _START + "init = os.getppid()\n" + ESCAPERS["double_fork"] + "\nos.kill(init, 9)\ntime.sleep(60)"

    def one(number: int) -> str:
        if number % 2:
            return str(execute(server, suicide, backend="subprocess", args=[mark], env={"MARK": mark})["outcome"])
        return str(execute(server, "print(1)", backend="jail")["outcome"])

    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(one, range(24)))
    assert outcomes == ["exited", "killed"] * 12
    assert processes_with(mark) == []
