# SPDX-License-Identifier: MIT
"""Programs that a recorded run starts: a replay gives what they gave, runs none of them, and says what is different."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.policy_run import Project, new_project

pytestmark = pytest.mark.linux
PYTHON = "/usr/bin/python3"
AGENT = """\
import hashlib, signal, subprocess, sys
chance = ["sh", "-c", "od -An -N8 -tx8 /dev/urandom"]
print("nobody can guess", subprocess.check_output(chance), flush=True)
subprocess.run(["sh", "-c", "echo straight; echo to the end >&2; od -An -N4 -tx4 /dev/urandom"])
print(subprocess.run(["cat"], input=b"what it is told", capture_output=True).stdout)
large = subprocess.run(["sh", "-c", "head -c 3000000 /dev/urandom; echo both >&2"], capture_output=True)
print(len(large.stdout), hashlib.sha256(large.stdout).hexdigest(), large.stderr)
stubborn = subprocess.Popen(
    ["sh", "-c", "trap 'echo told; exit 9' TERM; echo ready; while :; do sleep 0.05; done"], stdout=-1, text=True
)
print(stubborn.stdout.readline(), end="")
stubborn.terminate()
print(stubborn.communicate()[0], stubborn.returncode)
ended = subprocess.Popen(["sh", "-c", "kill -SEGV $$"])
print(ended.wait(), -signal.SIGSEGV)
refused = subprocess.run(["false"])
print(refused.returncode)
with open("out/log.txt", "a") as log:
    subprocess.run(["echo", "a line"], stdout=log)
    print("and one more", file=log)
print(open("out/log.txt").read())
"""
ON_A_TERMINAL = """\
import subprocess
print("begin", flush=True)
subprocess.run(["sh", "-c", "echo straight; od -An -N8 -tx8 /dev/urandom; echo beside >&2; printf 'no end'"])
print()
print(subprocess.run(["sh", "-c", "test -t 1; echo $?; test -t 2; echo $? >&2"], stdout=-1).stdout)
"""
ANEW = """\
import multiprocessing
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=print, args=("there",))
    process.start()
    process.join()
    print(process.exitcode)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = new_project(tmp_path_factory.mktemp("programs"))
    made.policy("write: ./out", "exec: sh, od, cat, head, sleep, false, echo, python3")
    (made.directory / "out").mkdir()
    return made


@pytest.fixture(scope="module")
def recorded(project: Project) -> bytes:
    project.file("agent.py", AGENT)
    done = project.run(PYTHON, "agent.py")
    assert done.exit_code == 0, done
    return done.stdout


def _replayed(project: Project, trace: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*project.command, "replay", "--json", "-t", str(trace)],
        cwd=project.directory,
        env=project.environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )


def _first(done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])["divergences"][0]
    return found


def test_a_replay_gives_what_programs_gave_and_runs_none(project: Project, recorded: bytes) -> None:
    replayed = _replayed(project, project.traces()[0])
    assert replayed.returncode == 0, replayed
    assert recorded.startswith(replayed.stdout)
    for word in (b"straight", b"what it is told", b"3000000", b"told\n 9", b"-11 -11", b"a line\nand one more"):
        assert word in replayed.stdout
    assert b"to the end" in replayed.stderr
    assert (project.directory / "out/log.txt").read_text() == "a line\nand one more\n"


@pytest.mark.parametrize(
    ("before", "after", "words", "line"),
    [
        ('b"what it is told"', 'b"what it is not told"', "proc.stdin", None),
        ('["false"]', '["false", "--help"]', "proc.spawn", 16),
        ('refused = subprocess.run(["false"])', "refused = ended", "proc.spawn", None),
    ],
    ids=["other input", "other words", "one program less"],
)
def test_what_programs_are_given_otherwise_is_reported(
    project: Project, recorded: bytes, before: str, after: str, words: str, line: int | None
) -> None:
    assert before in AGENT
    project.file("agent.py", AGENT.replace(before, after))
    try:
        replayed = _replayed(project, project.traces()[0])
    finally:
        project.file("agent.py", AGENT)
    assert replayed.returncode == 1, replayed
    first = _first(replayed)
    assert words in first["message"], first
    if line is not None:
        assert first["line"] == line, first


def test_programs_on_a_terminal_show_again_what_they_showed(project: Project, recorded: bytes) -> None:
    project.file("shows.py", ON_A_TERMINAL)
    code, shown = _on_a_terminal(project, "run", "--", PYTHON, "shows.py")
    assert code == 0, shown
    assert b"straight\r\n" in shown
    elsewhere = _replayed(project, project.traces()[-1])
    for code, again in (_on_a_terminal(project, "replay"), (elsewhere.returncode, elsewhere.stdout)):
        assert code == 0, again
        # A terminal translates what the replay writes to it once more.
        program = again.replace(b"\r\r\n", b"\r\n").partition(b"agentbox: ")[0]
        assert shown.startswith(program), (shown, program)
        assert program.endswith(b"b'1\\n'\r\n"), program


def _on_a_terminal(project: Project, *words: str) -> tuple[int, bytes]:
    """Exit code and screen of a command."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(project.directory)
        os.execvpe(project.command[0], [*project.command, *words], project.environ())
    shown = b""
    with contextlib.suppress(OSError):
        while data := os.read(terminal, 65536):
            shown += data
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown


def test_an_interpreter_that_goes_on_with_the_program_s_work_cannot_be_replayed_and_is_reported(
    project: Project, recorded: bytes
) -> None:
    project.file("anew.py", ANEW)
    done = project.run(PYTHON, "anew.py")
    assert done.text.startswith("there\n0\n"), done
    replayed = _replayed(project, project.traces()[-1])
    assert replayed.returncode == 1, replayed
    assert "cannot be replayed" in _first(replayed)["message"]
