# SPDX-License-Identifier: MIT
"""Ordinary Node programs: each is recorded by `agentbox run`, replayed, and does the same again; and what a replay says
of one that does not."""

from __future__ import annotations

import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.nodes import name, nodes
from tests.policy_run import PolicyRun, Project, new_project

pytestmark = pytest.mark.linux
PROGRAMS = Path(__file__).parent / "programs" / "node_replay"
NODES = nodes()
EXEC = "exec: echo, cat, sh, sort, date, sleep, head, base64"


@dataclass(frozen=True)
class Replayed:
    """A replay that has ended."""

    exit_code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode(errors="replace")


def replay(project: Project, *command: str, options: tuple[str, ...] = ()) -> Replayed:
    """Replay the project's last run."""
    done = subprocess.run(
        [*project.command, "replay", *options, "--", *command],
        cwd=project.directory,
        env=project.environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    return Replayed(done.returncode, done.stdout, done.stderr.decode(errors="replace"))


def without_summary(output: bytes) -> bytes:
    """What the program itself wrote."""
    return b"".join(line for line in output.splitlines(keepends=True) if not line.startswith(b"agentbox: "))


class _Pages(http.server.BaseHTTPRequestHandler):
    """A server outside; every answer is another one."""

    asked = 0

    def do_GET(self) -> None:
        kind = type(self)
        kind.asked += 1
        place = self.path.partition("?")[0]
        if place == "/slow":
            kind.release.wait(10)
        status = {"/redirect": 302, "/away": 302, "/missing": 404}.get(place, 200)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/page?redirected" if place == "/redirect" else "http://elsewhere.test/")
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b"x" * 100_000 if place == "/large" else b"%s %d " % (place.encode(), kind.asked) + sent
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the name that the server looks for
    release = threading.Event()

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as found:
        found.daemon_threads = True
        thread = threading.Thread(target=found.serve_forever, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            _Pages.release.set()
            found.shutdown()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = new_project(tmp_path)
    made.file("data/notes.txt", "some notes\n")
    (made.directory / "out").mkdir()
    return made


def record(project: Project, node: str, program: str, *words: str, rules: tuple[str, ...] = ()) -> PolicyRun:
    for file in {program, "shape.mjs"}:
        shutil.copy(PROGRAMS / file, project.directory / file)
    project.policy("read: ./data", "write: ./out", EXEC, f"exec: {node}", *rules)
    return project.run(node, program, *words)


def assert_the_same_again(project: Project, recorded: PolicyRun, *command: str) -> None:
    assert project.verdict()[0] == 0
    again = replay(project, *command)
    assert "agentbox: replay ok" in again.text, again
    assert without_summary(again.stdout) == without_summary(recorded.stdout)
    assert again.stderr == recorded.stderr
    assert again.exit_code == 0


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("report.cjs", 0),
        ("streams.mjs", 0),
        ("processes.cjs", 0),
        ("timers.mjs", 0),
        ("workers.mjs", 0),
        ("serving.mjs", 0),
        ("modules.mjs", 7),
    ],
)
@pytest.mark.parametrize("node", NODES, ids=name)
def test_ordinary_program_does_the_same_again(project: Project, node: str, program: str, code: int) -> None:
    recorded = record(project, node, program)
    assert recorded.exit_code == code, recorded
    written = {path: path.read_bytes() for path in (project.directory / "out").rglob("*") if path.is_file()}
    assert_the_same_again(project, recorded, node, program)
    assert written == {path: path.read_bytes() for path in (project.directory / "out").rglob("*") if path.is_file()}


@pytest.mark.parametrize("node", NODES, ids=name)
def test_functions_for_agents_give_again_what_they_gave(
    project: Project, node: str, server: http.server.ThreadingHTTPServer
) -> None:
    address = f"127.0.0.1:{server.server_port}"
    recorded = record(project, node, "agent.mjs", f"http://{address}", rules=(f"net: {address}",))
    assert recorded.exit_code == 0, recorded
    trace = (project.directory / "trace.jsonl").read_text()
    assert "hidden-" not in trace
    for word in ("policy denies read /etc/shadow", "policy denies net elsewhere.test", "judged all the while agentbox"):
        assert word in recorded.text
    asked = _Pages.asked
    shutil.rmtree(project.directory / "out")
    (project.directory / "out").mkdir()
    assert_the_same_again(project, recorded, node, "agent.mjs", f"http://{address}")
    assert _Pages.asked == asked
    assert not list((project.directory / "out").iterdir())


BASE = """\
const fs = require('node:fs');
const { execFileSync } = require('node:child_process');
const text = fs.readFileSync('data/notes.txt', 'utf8');
const when = Date.now();
agentbox.writeText('out/first', text);
agentbox.writeText('out/second', 'second');
const said = String(execFileSync('echo', ['hello']));
fs.writeFileSync('out/direct', said + when);
process.exitCode = text.length > 100 ? 4 : 2;
"""
FIRST = "agentbox.writeText('out/first', text);\n"
SECOND = "agentbox.writeText('out/second', 'second');\n"


@dataclass(frozen=True)
class Planted:
    """A recorded run that is replayed with something changed."""

    project: Project
    node: str

    def replay(self, program: str = BASE, **files: str) -> Mapping[str, Any]:
        """The report of a replay of another program, with other files."""
        self.project.file("base.cjs", program)
        self.project.file("data/notes.txt", files.get("notes", "some notes\n"))
        done = replay(self.project, self.node, "base.cjs", options=("--json",))
        assert done.exit_code == 1, done
        report: Mapping[str, Any] = json.loads(done.stderr.splitlines()[-1])
        return report


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    if not NODES:
        pytest.skip("needs node")
    project = new_project(tmp_path_factory.mktemp("planted"))
    project.policy("read: ./data", "write: ./out", EXEC)
    project.file("data/notes.txt", "some notes\n")
    (project.directory / "out").mkdir()
    project.file("base.cjs", BASE)
    recorded = project.run(NODES[0], "base.cjs")
    assert recorded.exit_code == 2, recorded
    done = replay(project, NODES[0], "base.cjs")
    assert done.exit_code == 0, done
    return Planted(project, NODES[0])


def line_of(text: str, program: str = BASE) -> int:
    return program[: program.index(text)].count("\n") + 1


def step_of(planted: Planted, op: str, word: str = "") -> int:
    """The number of a record of the recorded run."""
    (trace,) = planted.project.traces()
    records = planted.project.records(trace)
    return next(int(one["i"]) for one in records if one["op"] == op and word in json.dumps(one["args"]))


def edited(before: str, after: str) -> str:
    assert before in BASE
    return BASE.replace(before, after)


def test_changed_input_is_found_where_it_is_read(planted: Planted) -> None:
    (found, *_) = planted.replay(notes="other notes\n")["divergences"]
    assert found["step"] == step_of(planted, "fs.open_read", "notes.txt")
    assert found["expected"]["args"]["sha256"] != found["observed"]["args"]["sha256"]
    assert (found["file"], found["line"]) == (f"{planted.project.directory}/base.cjs", line_of("const text"))


def test_swapped_order_is_found_at_the_first_of_both(planted: Planted) -> None:
    program = BASE.replace(FIRST + SECOND, SECOND + FIRST)
    (found, *_) = planted.replay(program)["divergences"]
    assert found["step"] == step_of(planted, "fs.write_text", "out/first")
    assert (found["expected"]["args"]["path"], found["observed"]["args"]["path"]) == ("out/first", "out/second")
    assert found["line"] == line_of(SECOND, program)


def test_new_effect_is_found_where_it_is(planted: Planted) -> None:
    program = edited(SECOND, "agentbox.readText('data/notes.txt');\n" + SECOND)
    (found, *_) = planted.replay(program)["divergences"]
    assert found["observed"]["op"] == "fs.read_text"
    assert found["step"] == step_of(planted, "fs.write_text", "out/second")
    assert found["line"] == line_of("agentbox.readText", program)


def test_missing_effect_is_found_at_what_comes_instead(planted: Planted) -> None:
    (found, *_) = planted.replay(edited(SECOND, ""))["divergences"]
    assert found["step"] == step_of(planted, "fs.write_text", "out/second")
    assert found["observed"]["op"] == "proc.spawn"


@pytest.mark.parametrize("other", ["performance.now()", "5"])
def test_other_use_of_the_clock_is_found(planted: Planted, other: str) -> None:
    (found, *_) = planted.replay(edited("Date.now()", other))["divergences"]
    assert found["step"] == step_of(planted, "clock.values")
    assert found["expected"]["op"] == "Date.now"


def test_other_words_of_a_program_are_found(planted: Planted) -> None:
    (found, *_) = planted.replay(edited("['hello']", "['goodbye']"))["divergences"]
    assert found["step"] == step_of(planted, "proc.spawn")
    assert found["line"] == line_of("const said")
    assert found["observed"]["args"]["argv"] == ["echo", "goodbye"]


def test_other_content_of_a_written_file_is_found(planted: Planted) -> None:
    report = planted.replay(edited("said + when", "said + when + '!'"))
    assert [one["kind"] for one in report["divergences"]] == ["file"]
    assert any("base.cjs was changed" in note for note in report["notes"])


def test_other_exit_code_is_found_at_the_end(planted: Planted) -> None:
    (found,) = planted.replay(edited("100 ? 4 : 2", "5 ? 4 : 2"))["divergences"]
    assert (found["kind"], found["step"]) == ("exit_code", step_of(planted, "run.end"))


def test_a_divergence_that_the_program_catches_is_one_all_the_same(planted: Planted) -> None:
    program = edited(SECOND, "try { agentbox.writeText('out/third', '') } catch {}\n" + SECOND)
    (found, *_) = planted.replay(program)["divergences"]
    assert found["observed"]["args"]["path"] == "out/third"


MANY = """\
const fs = require('node:fs');
const limit = Number(fs.readFileSync('data/limit', 'utf8'));
for (let n = 0; n < 40; n++) {
  fs.readFileSync(`data/${n % 4}`);
  if (n === limit) fs.readFileSync('data/3');
  agentbox.readText(`data/${n % 4}`);
  if (n % 10 === 0) Date.now();
}
"""


def test_where_steps_were_told_before_they_came_the_first_that_is_other_is_found_with_its_place(
    project: Project,
) -> None:
    if not NODES:
        pytest.skip("needs node")
    project.policy("read: ./data")
    for number in range(4):
        project.file(f"data/{number}", str(number))
    project.file("data/limit", "100")
    project.file("many.cjs", MANY)
    assert project.run(NODES[0], "many.cjs").exit_code == 0
    assert replay(project, NODES[0], "many.cjs").exit_code == 0
    (trace,) = project.traces()
    effects = [int(one["i"]) for one in project.records(trace) if one["op"] == "fs.read_text"]
    project.file("many.cjs", MANY.replace("n === limit", "n === 33"))
    done = replay(project, NODES[0], "many.cjs", options=("--json",))
    found = json.loads(done.stderr.splitlines()[-1])["divergences"][0]
    assert (found["step"], found["line"]) == (effects[33], 5)
    assert found["expected"]["op"] == "fs.read_text"
    assert found["observed"]["args"]["path"].endswith("data/3")
