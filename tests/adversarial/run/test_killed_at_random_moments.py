# SPDX-License-Identifier: MIT
"""Fifty runs, each with one process killed at a random moment: the runner, the agent, or anything else of the run.

Whatever the moment: the verdict about the trace is true, and no process, control group, mount or directory of the run
is left.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentbox.linux.cgroupfs import mounts
from agentbox.trace.keys import KeyStore
from agentbox.trace.ledger import Ledger
from agentbox.trace.verdict import Status, Trust
from agentbox.trace.verify import verify
from tests.adversarial.host_state import descendants, owner_groups, until
from tests.policy_run import AGENTBOX, Project, new_project

pytestmark = pytest.mark.linux
ROUNDS = 52
_AT_ONCE = 2
_LONGEST_WAIT_SECONDS = 0.8
# Part of the rounds in which there is a box already, so that slow machines get beyond the start.
_BEGUN = 0.8
_CODE = (
    "import subprocess, threading\n"
    "open('out/started', 'w').close()\n"
    "for number in range(12):\n"
    "    open('data/notes.txt').read()\n"
    "    open('out/%d' % number, 'w').write('x' * 100)\n"
    "    threads = [threading.Thread(target=subprocess.run, args=(['echo', 'x'],)) for _ in range(2)]\n"
    "    [thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
)
_GUARDED = ("/usr/bin/python3", "-c", _CODE)
_UNGUARDED = ("/usr/bin/python3", "-I", "-S", "-c", _CODE)


@dataclass(frozen=True)
class Round:
    """What was killed in a round, and how the runner ended."""

    number: int
    victim: str
    exit_code: int
    family: frozenset[tuple[int, str]]
    groups: tuple[Path, ...]
    project: Project


def _born(pid: int) -> str:
    """When a process started; '' when there is none, or only what its parent has not collected."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return "" if fields[0] == b"Z" else fields[19].decode()
    return ""


def _family(pid: int) -> set[tuple[int, str]]:
    return {(one, born) for one in descendants(pid) if (born := _born(one))}


def _run_and_kill(number: int, directory: Path) -> Round:
    dice = random.Random(number)
    directory.mkdir()
    project = new_project(directory)
    project.policy("read: ./data", "write: ./out", "exec: echo")
    project.file("data/notes.txt", "notes\n")
    with subprocess.Popen(
        [*AGENTBOX, "run", "-q", "--", *dice.choice((_GUARDED, _UNGUARDED))],
        cwd=project.directory,
        env=project.environ(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    ) as running:
        family: set[tuple[int, str]] = set()
        groups: set[Path] = set()
        if dice.random() < _BEGUN:
            until(lambda: descendants(running.pid) != [] or running.poll() is not None, "no box was begun", 90)
        # A moment, not a condition: any state of the run will do.
        for pause in (dice.uniform(0, _LONGEST_WAIT_SECONDS), 0):
            select.select([], [], [], pause)
            family |= _family(running.pid)
            groups |= set(owner_groups(running.pid))
        victim = dice.choice(["runner", "runner", "any"])
        below = sorted(pid for pid, born in family if _born(pid) == born)
        target = dice.choice(below) if victim == "any" and below else running.pid
        victim = victim if target != running.pid else "runner"
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, signal.SIGKILL)
        family |= _family(running.pid)
        code = running.wait(90)
    return Round(number, victim, code, frozenset(family), tuple(groups), project)


def test_a_process_killed_at_any_moment_leaves_nothing_and_a_true_verdict(tmp_path: Path) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        rounds = list(pool.map(lambda number: _run_and_kill(number, tmp_path / str(number)), range(ROUNDS)))
    assert {one.victim for one in rounds} == {"runner", "any"}
    wrong = [(one.number, one.victim, one.exit_code, said) for one in rounds if (said := _untrue(one))]
    assert wrong == []
    for one in rounds:
        until(lambda one=one: not [pid for pid, born in one.family if _born(pid) == born], f"{one}: a process is left")
    assert [mount.point for mount in mounts() if mount.point.startswith(str(tmp_path))] == []
    for one in rounds[::13]:
        again = one.project.run("echo", "again", options=["-q"])
        assert (again.exit_code, again.stdout) == (0, b"again\n"), (one, again)
        assert one.project.verdict()[0] == 0
    # What a killed runner could not remove, the next one does.
    for one in rounds:
        until(lambda one=one: not [path for path in one.groups if path.exists()], f"{one}: a control group is left")


def _untrue(one: Round) -> str:
    """What is wrong with the verdict of a round, '' when it is true: a run has an end exactly if its runner lived."""
    keys = KeyStore(one.project.state / "trace")
    for trace in one.project.traces():
        verdict = verify(trace, Trust(keys.trusted(), Ledger(keys.ledger_path)))
        if b'"op":"trace.seal"' in trace.read_bytes():
            fitting = (Status.OK,)
        elif one.victim == "runner":
            # Nothing was written yet, or a line was cut, or there is only no end.
            fitting = (Status.UNSEALED, Status.TORN) if trace.stat().st_size else (Status.NOT_A_TRACE, Status.TORN)
        else:
            fitting = ()
        if verdict.status not in fitting:
            return str(verdict)
    return ""
