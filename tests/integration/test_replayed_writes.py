# SPDX-License-Identifier: MIT
"""Files that a recorded run wrote to without changing them, or changed where no guard sees it: a replay begins with
what the run began with, whatever they are by now."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.nodes import name, nodes
from tests.policy_run import Project, new_project

pytestmark = pytest.mark.linux
PYTHON = "/usr/bin/python3"
IN_PYTHON = """\
import ctypes, os, shutil, sqlite3, subprocess, tempfile
import agentbox.client as box
def put(path, text):
    with open(path, "w") as file:
        file.write(text)
def is_refused(act):
    try:
        act()
    except OSError as error:
        print(error)
put("out/same", "same\\n")
os.remove("out/again"); put("out/again", "again\\n")
put("out/cut", "123456"); os.truncate("out/cut", 3)
os.chmod("out/mode", 0o600)
os.chmod("out/same-mode", 0o644)
os.utime("out/time", (1, 1))
put("out/gone", "x"); os.remove("out/gone")
put("out/new", "over\\n"); os.replace("out/new", "out/over")
open("out/append", "a").close()
open("out/both", "r+").close()
os.close(os.open("out/open", os.O_RDWR | os.O_CREAT))
is_refused(lambda: open("out/exists", "x"))
os.makedirs("out/dir", exist_ok=True)
os.makedirs("/usr/lib", exist_ok=True)
is_refused(lambda: os.mkdir("out/dir"))
os.rename("out/moved", "out/elsewhere"); os.rename("out/elsewhere", "out/moved")
os.mkdir("out/short"); os.rmdir("out/short")
os.remove("out/link"); os.symlink("same", "out/link")
shutil.copy("out/same", "out/copied")
box.write_text("out/sdk", "sdk\\n")
with tempfile.NamedTemporaryFile(dir="out") as file:
    print(file.name)
subprocess.run(["cp", "out/same", "out/child"])
shown = os.open("out/descriptor", os.O_RDONLY)
os.fchmod(shown, 0o600)
os.utime(shown, (2, 2))
os.mkfifo("out/pipe")
libc = ctypes.CDLL(None)
os.write(libc.open(b"out/unseen", os.O_WRONLY | os.O_CREAT, 0o644), b"made where no guard looks")
with sqlite3.connect("out/one.db") as database:
    database.execute("attach 'out/other.db' as other")
    database.execute("create table other.t(a)")
print(sorted(os.listdir("out")))
"""
IN_NODE = """\
const fs = require('node:fs');
const put = (path, text) => fs.writeFileSync(path, text);
const isRefused = (act) => {
  try { act(); } catch (error) { console.log(error.message); }
};
put('out/same', 'same\\n');
fs.unlinkSync('out/again'); put('out/again', 'again\\n');
put('out/cut', '123456'); fs.truncateSync('out/cut', 3);
fs.chmodSync('out/mode', 0o600);
fs.chmodSync('out/same-mode', 0o644);
fs.utimesSync('out/time', 1, 1);
put('out/gone', 'x'); fs.rmSync('out/gone');
put('out/new', 'over\\n'); fs.renameSync('out/new', 'out/over');
fs.closeSync(fs.openSync('out/append', 'a'));
fs.closeSync(fs.openSync('out/both', 'r+'));
fs.closeSync(fs.openSync('out/open', fs.constants.O_RDWR | fs.constants.O_CREAT));
isRefused(() => fs.openSync('out/exists', 'wx'));
fs.mkdirSync('out/dir', { recursive: true });
fs.mkdirSync('/usr/lib', { recursive: true });
isRefused(() => fs.mkdirSync('out/dir'));
fs.renameSync('out/moved', 'out/elsewhere'); fs.renameSync('out/elsewhere', 'out/moved');
fs.mkdirSync('out/short'); fs.rmdirSync('out/short');
fs.unlinkSync('out/link'); fs.symlinkSync('same', 'out/link');
fs.copyFileSync('out/same', 'out/copied');
agentbox.writeText('out/sdk', 'sdk\\n');
fs.promises.writeFile('out/child', 'same\\n');
const shown = fs.openSync('out/descriptor', 'r');
fs.fchmodSync(shown, 0o600);
fs.futimesSync(shown, 2, 2);
console.log(fs.readdirSync('out').sort().join());
"""
PROGRAMS = [
    pytest.param((PYTHON, "agent.py", IN_PYTHON), id="python"),
    *[pytest.param((node, "agent.cjs", IN_NODE), id=name(node)) for node in nodes()],
]
SAME = {"same": "same", "again": "again", "over": "over", "sdk": "sdk", "copied": "same", "child": "same"}
# What is there only for a while.
MADE = ("gone", "new", "elsewhere", "short")


@dataclass
class Recorded:
    project: Project
    command: tuple[str, str]
    # What was there only because of the run.
    made: tuple[str, ...] = ()

    @property
    def out(self) -> Path:
        return self.project.directory / "out"

    def replay(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.project.command, "replay", "-q", "--", *self.command],
            cwd=self.project.directory,
            env=self.project.environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def _as_it_was(out: Path) -> None:
    """Everything that the run begins with."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    for path in ("mode", "same-mode", "time", "append", "both", "open", "exists", "descriptor"):
        (out / path).write_text(f"{path}\n")
        (out / path).chmod(0o644)
    for path, text in SAME.items():
        (out / path).write_text(f"{text}\n")
    (out / "cut").write_text("123")
    (out / "dir").mkdir()
    (out / "moved").mkdir()
    (out / "moved" / "file").write_text("in it\n")
    (out / "link").symlink_to("same")


def _other_content(recorded: Recorded) -> None:
    for path in recorded.out.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.write_text("other\n")
            path.chmod(0o666)


def _gone(recorded: Recorded) -> None:
    shutil.rmtree(recorded.out)
    recorded.out.mkdir()


def _left_over(recorded: Recorded) -> None:
    for path in recorded.made:
        (recorded.out / path).write_text("left\n")


def _other_kinds(recorded: Recorded) -> None:
    _gone(recorded)
    for path in ("same", "again", "over", "sdk", "copied", "cut", "moved", "link", "gone"):
        (recorded.out / path).mkdir()
        (recorded.out / path / "file").write_text("in the way\n")
    (recorded.out / "dir").write_text("in the way\n")


@pytest.fixture(scope="module", params=PROGRAMS)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    interpreter, script, text = request.param
    made = new_project(tmp_path_factory.mktemp("writes"))
    made.policy("write: ./out", "exec: cp")
    made.file(script, text)
    out = made.directory / "out"
    _as_it_was(out)
    before = os.listdir(out)
    done = made.run(interpreter, script)
    assert done.exit_code == 0, done
    return Recorded(made, (interpreter, script), (*MADE, *sorted({*os.listdir(out)}.difference(before))))


@pytest.mark.parametrize(
    "change",
    [_other_content, _gone, _left_over, _other_kinds],
    ids=["other content and modes", "nothing there", "files of an earlier run", "directories instead of files"],
)
def test_a_replay_begins_with_the_files_that_the_run_began_with(
    recorded: Recorded, change: Callable[[Recorded], None]
) -> None:
    _as_it_was(recorded.out)
    change(recorded)
    before = sorted(os.listdir(recorded.out))
    done = recorded.replay()
    assert done.returncode == 0, done
    assert "replay ok" in done.stdout
    assert sorted(os.listdir(recorded.out)) == before


def test_a_file_that_is_written_as_it_was_and_comes_out_other_is_a_divergence(recorded: Recorded) -> None:
    _as_it_was(recorded.out)
    script = recorded.project.directory / recorded.command[1]
    text = script.read_text()
    try:
        script.write_text(text.replace("123456", "193456"))
        done = recorded.replay()
    finally:
        script.write_text(text)
    assert done.returncode == 1, done
    assert f"{recorded.out}/cut has sha256" in done.stdout


def test_what_changed_beside_a_run_is_no_divergence(tmp_path: Path) -> None:
    project = new_project(tmp_path)
    project.policy("write: ./out", "read: ./data")
    waiting = "import os, time\nopen('out/own', 'w').close()\nwhile not os.path.exists('data/go'): time.sleep(0.01)\n"
    project.file("agent.py", waiting)
    for path in ("out", "data"):
        (project.directory / path).mkdir()
    project.file("out/edited", "before")
    running = subprocess.Popen(
        [*project.command, "run", "--", PYTHON, "agent.py"],
        cwd=project.directory,
        env=project.environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        while not (project.directory / "out" / "own").exists():
            assert running.poll() is None
        project.file("out/edited", "by somebody else")
        project.file("out/made", "by somebody else")
    finally:
        project.file("data/go", "")
        text, _ = running.communicate(timeout=120)
    assert running.returncode == 0, text
    done = Recorded(project, (PYTHON, "agent.py")).replay()
    assert done.returncode == 0, done
