# SPDX-License-Identifier: MIT
"""`agentbox replay` and `agentbox diff`, by their contract: what is the same is said so, and what is not, where."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.policy_run import AGENTBOX, Project, new_project

pytestmark = pytest.mark.linux

PYTHON = "/usr/bin/python3"
POLICY = ("read: ./src", "write: ./out", "exec: echo")
AGENT = """\
import sys, time
import agentbox.client as box
words = open("src/words.txt").read()
print(box.read_text("src/one.txt"))
print(box.read_text("src/two.txt"))
print(time.time())
box.write_text("out/result.txt", words)
with open("out/log.txt", "a") as log:
    log.write("ran\\n")
sys.exit(3)
"""


@dataclass
class Replayed:
    """A replay that has ended, and its report where it was asked for as JSON."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stderr.splitlines()[-1])
        return found

    @property
    def first(self) -> dict[str, Any]:
        """The first divergence."""
        found: dict[str, Any] = self.report["divergences"][0]
        return found


@dataclass
class Recorded:
    """A project with one recorded run of agent.py."""

    project: Project
    records: list[dict[str, Any]]
    trace: Path
    stdout: str

    def replay(self, *command: str, options: tuple[str, ...] = ("--json",)) -> Replayed:
        done = subprocess.run(
            [*AGENTBOX, "replay", *options, *(("--", *command) if command else ())],
            cwd=self.project.directory,
            env=self.project.environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Replayed(done.returncode, done.stdout, done.stderr)

    def step(self, op: str, path: str = "") -> int:
        """The number of a record."""
        return next(
            int(one["i"]) for one in self.records if one["op"] == op and str(one["args"].get("path", "")).endswith(path)
        )


def _record(directory: Path, agent: str, *policy: str) -> Recorded:
    project = new_project(directory)
    project.policy(*policy)
    for name in ("one", "two", "three", "words"):
        project.file(f"src/{name}.txt", f"{name}\n")
    project.file("out/log.txt", "before\n")
    project.file("agent.py", agent)
    done = project.run(PYTHON, "agent.py")
    trace = project.traces()[-1]
    return Recorded(project, done.records, trace, done.text)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return _record(tmp_path_factory.mktemp("recorded"), AGENT, *POLICY)


@pytest.fixture
def recorded(made: Recorded) -> Iterator[Recorded]:
    """The one recorded run; what a test changes around it is undone."""
    kept = {path: path.read_bytes() for path in made.project.directory.rglob("*") if path.is_file()}
    yield made
    for path, content in kept.items():
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)


def test_a_run_replays_without_its_files_and_leaves_all_as_it_is(recorded: Recorded) -> None:
    directory = recorded.project.directory
    shutil.rmtree(directory / "src" / "gone", ignore_errors=True)
    (directory / "src" / "one.txt").unlink()
    (directory / "src" / "two.txt").write_text("another text\n")
    (directory / "out" / "result.txt").unlink()
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    done = recorded.replay(PYTHON, "agent.py", options=())
    assert done.exit_code == 0, done
    *shown, last = done.stdout.splitlines()
    assert shown == recorded.stdout.splitlines()[:-1]
    assert last == "agentbox: replay ok — 6/6 recorded steps matched"
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_the_command_may_be_left_out(recorded: Recorded) -> None:
    done = recorded.replay(options=("--json", "-q"))
    assert done.exit_code == 0, done
    assert done.stdout == ""
    assert done.report["ok"] is True
    assert (done.report["matched"], done.report["exit_code"]) == (6, 3)


def _code(old: str, new: str) -> Callable[[Recorded], None]:
    def change(recorded: Recorded) -> None:
        script = recorded.project.directory / "agent.py"
        text = script.read_text()
        assert text.count(old) == 1
        script.write_text(text.replace(old, new))

    return change


READ_ONE = 'print(box.read_text("src/one.txt"))\n'
READ_TWO = 'print(box.read_text("src/two.txt"))\n'
WRITE = 'box.write_text("out/result.txt", words)\n'


@pytest.mark.parametrize(
    ("change", "kind", "step", "line"),
    [
        (_code("src/two.txt", "src/three.txt"), "different", ("fs.read_text", "src/two.txt"), 5),
        (_code(READ_ONE + READ_TWO, READ_TWO + READ_ONE), "different", ("fs.read_text", "src/one.txt"), 4),
        (_code(WRITE, WRITE + READ_ONE), "different", ("fs.open_write", "log.txt"), 8),
        (_code(WRITE, ""), "different", ("fs.write_text", "out/result.txt"), 7),
        (_code("time.time()", "time.monotonic()"), "different", ("clock.values", ""), 6),
        (_code("sys.exit(3)", "sys.exit(4)"), "exit_code", ("run.end", ""), None),
        (_code("sys.exit(3)", "print(0)"), "output", ("run.end", ""), None),
        (_code("ran", "runs"), "file", ("fs.written", "log.txt"), None),
    ],
    ids=[
        "changed code", "swapped order", "new effect", "missing effect", "another clock", "another exit code",
        "another output", "other content in a file",
    ],
)  # fmt: skip
def test_changed_code_is_reported_at_the_step_where_it_parts(
    recorded: Recorded, change: Callable[[Recorded], None], kind: str, step: tuple[str, str], line: int | None
) -> None:
    change(recorded)
    done = recorded.replay(PYTHON, "agent.py")
    assert done.exit_code == 1
    assert done.report["started"] is True
    assert (done.first["kind"], done.first["step"]) == (kind, recorded.step(*step)), done.first
    assert done.report["notes"] == [f"{recorded.project.directory}/agent.py was changed since it was recorded"]
    if line is not None:
        assert done.first["file"] == str(recorded.project.directory / "agent.py")
        assert done.first["line"] == line


def test_changed_input_is_reported_with_both_hashes(recorded: Recorded) -> None:
    (recorded.project.directory / "src" / "words.txt").write_text("other words\n")
    done = recorded.replay(PYTHON, "agent.py", options=())
    step = recorded.step("fs.open_read", "words.txt")
    assert done.exit_code == 1
    text = done.stdout
    assert f"  - step {step}: recorded fs.open_read" in text
    assert "agent.py:3" in text
    hashes = {line.split('"')[3] for line in text.splitlines() if '"sha256"' in line}
    assert len(hashes) == 2


def test_what_a_program_swallows_is_a_divergence_all_the_same(recorded: Recorded) -> None:
    _code(READ_TWO, 'try: box.read_text("src/three.txt")\nexcept BaseException: pass\n')(recorded)
    done = recorded.replay(PYTHON, "agent.py")
    assert done.exit_code == 1
    assert done.first["step"] == recorded.step("fs.read_text", "src/two.txt")


def test_a_new_denial_is_a_divergence(recorded: Recorded) -> None:
    _code(READ_TWO, 'try: open("/etc/shadow")\nexcept OSError: pass\n' + READ_TWO)(recorded)
    done = recorded.replay(PYTHON, "agent.py")
    assert done.exit_code == 1
    assert done.first["kind"] == "denial"
    assert "/etc/shadow" in done.first["message"]


@pytest.mark.parametrize(
    ("command", "policy", "kind"),
    [((PYTHON, "agent.py", "more"), POLICY, "command"), ((PYTHON, "agent.py"), (*POLICY, "read: ./more"), "policy")],
    ids=["other arguments", "a changed policy"],
)
def test_what_does_not_fit_is_said_first_and_nothing_starts(
    recorded: Recorded, command: tuple[str, ...], policy: tuple[str, ...], kind: str
) -> None:
    recorded.project.policy(*policy)
    done = recorded.replay(*command)
    assert done.exit_code == 1
    assert (done.report["started"], done.first["kind"], done.first["step"]) == (False, kind, 0)
    assert done.stdout == ""


def test_a_truncated_trace_is_not_replayed(recorded: Recorded) -> None:
    lines = recorded.trace.read_text().splitlines(keepends=True)
    recorded.trace.write_text("".join(lines[:-3]))
    done = recorded.replay(PYTHON, "agent.py")
    assert (done.exit_code, done.stdout) == (1, "")
    assert (done.report["started"], done.first["kind"]) == (False, "trace")
    assert "truncated after entry" in done.first["message"]
    done = recorded.replay(PYTHON, "agent.py", options=())
    assert (done.exit_code, done.stdout) == (1, "")
    assert "agentbox: TAMPERED — truncated after entry" in done.stderr
    assert "nothing was started" in done.stderr


READING = """\
import time
open("src/one.txt").close()
time.time()
print("ran")
"""


def test_a_trace_that_was_changed_between_its_ends_starts_nothing(tmp_path: Path) -> None:
    recorded = _record(tmp_path, READING, *POLICY)
    done = recorded.replay(options=())
    assert (done.exit_code, done.stdout) == (0, "ran\nagentbox: replay ok — 2/2 recorded steps matched\n")
    # Its first and last records are whole, so that the box is begun before this is found.
    recorded.trace.write_text(recorded.trace.read_text().replace("src/one.txt", "src/two.txt"))
    done = recorded.replay()
    assert (done.exit_code, done.stdout) == (1, "")
    assert (done.report["started"], done.first["kind"]) == (False, "trace")
    assert "hash chain breaks at entry" in done.first["message"]


TELLING = """\
import subprocess, sys
import agentbox.client as box
text = box.read_text("src/secret.txt")
print(text, len(box.read_text("src/large.txt")), box.run(["cat", "src/secret.txt"]))
print(text, file=sys.stderr)
print(subprocess.check_output(["cat", "src/secret.txt"]))
subprocess.run(["cat"], input=text, text=True)
open("out/log.txt", "w").write(text)
box.write_text("out/result.txt", text)
"""


def test_a_run_of_which_only_hashes_are_recorded_tells_no_content_and_is_not_replayed(tmp_path: Path) -> None:
    project = new_project(tmp_path)
    project.policy("read: ./src", "write: ./out", "exec: cat")
    secret = "what nobody else may know"
    for path, text in (("src/secret.txt", secret), ("src/large.txt", secret * 5000), ("out/log.txt", secret)):
        project.file(path, text)
    project.file("agent.py", TELLING)
    done = project.run(PYTHON, "agent.py", options=("--hash-bodies",))
    assert done.exit_code == 0, done
    assert secret in done.text
    left = [path for top in (project.directory / ".agentbox", project.state) for path in top.rglob("*")]
    told = b"".join(path.read_bytes() for path in left if path.is_file())
    assert secret.encode() not in told
    assert base64.b64encode(secret.encode())[:-4] not in told
    results = [record["result"] for record in done.records if record["op"] == "fs.read_text"]
    assert results[0] == {"bytes": len(secret), "sha256": hashlib.sha256(secret.encode()).hexdigest()}
    assert "random_seed" not in done.records[0]["args"]
    assert project.verdict(project.traces()[-1])[0] == 0
    replayed = Recorded(project, [], project.traces()[-1], "").replay(options=())
    assert (replayed.exit_code, replayed.stdout) == (1, "")
    assert "recorded with --hash-bodies" in replayed.stderr


def test_diff_names_the_first_step_at_which_two_runs_part(recorded: Recorded) -> None:
    def diff(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [*AGENTBOX, "diff", *words],
            cwd=recorded.project.directory,
            env=recorded.project.environ(),
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    trace = str(recorded.trace)
    assert diff(trace, trace) == (0, "agentbox: no difference — 6 steps in both\n")
    _code("src/two.txt", "src/three.txt")(recorded)
    recorded.project.run(PYTHON, "agent.py")
    other = str(next(path for path in recorded.project.traces() if path != recorded.trace))
    code, text = diff("--json", trace, other)
    told = json.loads(text)
    assert code == 1
    steps = [one for one in told["differences"] if one["kind"] == "different"]
    assert steps[0]["step"] == recorded.step("fs.read_text", "src/two.txt")
    assert steps[0]["expected"]["args"]["path"].endswith("two.txt")
    assert steps[0]["observed"]["args"]["path"].endswith("three.txt")
