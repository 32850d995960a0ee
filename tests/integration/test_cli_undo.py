# SPDX-License-Identifier: MIT
"""`agentbox run --checkpoint`, `agentbox changes` and `agentbox undo` on real runs in every language."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentbox.workspace import checkpoint_undo
from agentbox.workspace.checkpoint_store import CheckpointStore
from tests.conftest import not_here
from tests.ordinary_user import ordinary_user
from tests.policy_run import PolicyRun, Project, new_project
from tests.unit.workspace.checkpoints import state_of

_THREADS = """
import os, threading
def work(number):
    for turn in range(20):
        with open(f"data/{number}-{turn}", "w") as file:
            file.write("x")
    os.unlink("data/tool") if number == 7 else None
threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
_PROGRAMS = ("sh", "bash", "rm", "mkdir", "chmod", "sleep", "ls")
_MAPPING = """
import mmap, os
fd = os.open("data/notes.txt", os.O_RDWR)
with mmap.mmap(fd, 0) as mapped:
    mapped[0:1] = b"B"
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = new_project(tmp_path)
    project.policy("read: .", "write: ./data", "write: ./out", *(f"exec: {name}" for name in _PROGRAMS))
    project.file("data/notes.txt", "before\n")
    project.file("data/untracked.bin", "u" * 1000)
    project.file("data/tool", "#!/bin/sh\n", 0o755)
    (project.directory / "data" / "link").symlink_to("notes.txt")
    return project


def checked(project: Project, *command: str, **options: Any) -> PolicyRun:
    """A run with a checkpoint."""
    return project.run(*command, options=("--checkpoint",), **options)


def told(project: Project, *words: str) -> tuple[int, str, str]:
    """Exit code and words of another command in the project."""
    done = subprocess.run(
        [*project.command, *words],
        cwd=project.directory,
        env=project.environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def undone(project: Project, checkpoint: str) -> bool:
    """Undo in this process; whether nothing was left."""
    store = CheckpointStore(str(project.directory))
    return checkpoint_undo.undo(store, store.get(checkpoint)).is_whole


def the_checkpoint(done: PolicyRun) -> tuple[int, dict[str, Any]]:
    """Where the trace has its one checkpoint, and the record."""
    found = [(index, one) for index, one in enumerate(done.records) if one["op"] == "hook.checkpoint"]
    assert len(found) == 1, done
    return found[0]


WAYS = {
    "a guarded Python": ("/usr/bin/python3", "-c", "open('data/notes.txt', 'w').write('after')"),
    "a Python that renames": ("/usr/bin/python3", "-c", "import os; os.rename('data/notes.txt', 'data/moved')"),
    "a Python that removes": ("/usr/bin/python3", "-c", "import os; os.remove('data/notes.txt')"),
    "a Python that starts a shell": ("/usr/bin/python3", "-c", "import os; os.system('echo after > data/notes.txt')"),
    "a Python without a guard that maps": ("/usr/bin/python3", "-I", "-S", "-c", _MAPPING),
    "eight threads without a guard": ("/usr/bin/python3", "-I", "-S", "-c", _THREADS),
    "a Node": ("node", "-e", "require('fs').writeFileSync('data/notes.txt', 'after')"),
    "a shell": ("/bin/bash", "-c", "echo after > data/notes.txt; rm data/tool; mkdir -p out/a/b; chmod 600 data"),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_any_program_changed_is_undone_and_the_checkpoint_came_first(project: Project, way: str) -> None:
    if WAYS[way][0] == "node" and shutil.which("node", path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip("no node here")
    before = state_of(project.directory / "data")
    done = checked(project, *WAYS[way])
    assert done.exit_code == 0, done
    index, record = the_checkpoint(done)
    changes = [
        place
        for place, one in enumerate(done.records)
        if one["op"].startswith("fs.") and one["op"] not in ("fs.open_read", "fs.startup_file")
    ]
    assert all(index < place for place in changes)
    last = done.text.splitlines()[-1]
    taken = record["result"]["snapshot"]
    assert last == f"agentbox: checkpoint {taken} taken before first mutation — `agentbox undo` reverts this run"
    assert state_of(project.directory / "data") != before
    assert undone(project, taken)
    assert state_of(project.directory / "data") == before
    assert not (project.directory / "out").exists()


def test_a_run_that_changes_nothing_takes_none_and_undo_says_so(project: Project) -> None:
    done = checked(project, "/usr/bin/python3", "-c", "print(open('data/notes.txt').read())")
    assert done.exit_code == 0
    assert "checkpoint" not in done.text
    assert not [one for one in done.records if one["op"] == "hook.checkpoint"]
    code, _, errors = told(project, "undo")
    assert code == 2
    assert "took a checkpoint" in errors
    assert "hint: " in errors
    checked(project, "/bin/sh", "-c", "echo > data/new")
    project.run("/bin/true")
    code, _, errors = told(project, "changes")
    assert code == 2
    assert "took no checkpoint" in errors


def test_changes_are_letters_paths_and_diffs(project: Project) -> None:
    checked(project, "/bin/sh", "-c", "echo after > data/notes.txt; rm data/tool; echo new > out/new")
    assert told(project, "changes")[1] == (
        "M data/notes.txt\n--- a/data/notes.txt\n+++ b/data/notes.txt\n@@ -1 +1 @@\n-before\n+after\n"
        "D data/tool\n--- a/data/tool\n+++ /dev/null\n@@ -1 +0,0 @@\n-#!/bin/sh\n"
        "A out (directory)\n"
        "A out/new\n--- /dev/null\n+++ b/out/new\n@@ -0,0 +1 @@\n+new\n"
    )
    assert told(project, "changes", "--name-only")[1] == "data/notes.txt\ndata/tool\nout\nout/new\n"
    told_json = json.loads(told(project, "changes", "--json")[1])
    assert [one["status"] for one in told_json["changes"]] == ["M", "D", "A", "A"]
    told_json = json.loads(told(project, "undo", "--json")[1])
    assert {one["status"] for one in told_json["paths"]} == {"M", "A", "D"}
    assert told(project, "undo")[0] == 1
    assert told(project, "undo", "--redo")[0] == 0
    assert (project.directory / "out" / "new").read_text() == "new\n"
    assert project.verdict()[0] == 0


def test_earlier_runs_can_be_undone_by_name_and_later_work_is_a_conflict(project: Project) -> None:
    first = the_checkpoint(checked(project, "/bin/sh", "-c", "echo first > data/one"))[1]["result"]["snapshot"]
    checked(project, "/bin/sh", "-c", "echo second > data/two; echo third >> data/one")
    code, _, errors = told(project, "undo", first)
    assert code == 1
    assert "data/one: it was changed since" in errors
    assert told(project, "undo")[0] == 0
    assert told(project, "undo", first)[0] == 0
    assert sorted(os.listdir(project.directory / "data")) == ["link", "notes.txt", "tool", "untracked.bin"]
    assert told(project, "undo", "20990101")[0] == 2
    project.run("/bin/true")
    without = project.traces()[-1].parent.name
    code, _, errors = told(project, "changes", without)
    assert code == 2
    assert f"the run {without} took no checkpoint" in errors
    assert first in told(project, "undo", "--list")[1]


def snapback(project: Project, script: str) -> dict[str, str]:
    """A PATH that begins with a snapback that does this."""
    place = project.state / "bin"
    place.mkdir(exist_ok=True)
    (place / "snapback").write_text(f"#!/bin/sh\n{script}\n")
    (place / "snapback").chmod(0o755)
    return {"PATH": f"{place}:/usr/local/bin:/usr/bin:/bin"}


def test_snapback_takes_its_snapshot_too_where_it_is_installed(project: Project) -> None:
    said = project.state / "said"
    script = f'env > {said}; pwd >> {said}; for word in "$@"; do echo "word $word" >> {said}; done\n'
    found = snapback(
        project, script + "cat data/notes.txt >> " + str(said) + "; echo snapback: snapshot 20260809-143103"
    )
    project.file("snapback.toml", '[snapshot]\nignore = ["*.log"]\n')
    done = checked(
        project,
        "/usr/bin/python3",
        "-c",
        "open('data/notes.txt', 'w').write('after'); open('data/x.log', 'w').write('log')",
        environment={**found, "PYTHONPATH": "/nowhere", "AGENTBOX_QUEUE_SECONDS": "1", "KEPT": "yes"},
    )
    assert done.text.splitlines()[-1] == (
        "agentbox: checkpoint 20260809-143103 taken before first mutation — `snapback undo` reverts this run"
    )
    result = the_checkpoint(done)[1]["result"]
    assert (result["snapshot"], result["undo"]) == ("20260809-143103", "snapback undo")
    text = said.read_text()
    assert "word snap\nword -m\nword agentbox: before fs.open_write " in text
    assert f"\n{project.directory}\n" in text
    assert "KEPT=yes" in text
    assert "PYTHONPATH" not in text
    assert "AGENTBOX" not in text
    assert text.endswith("before\n")
    code, _, errors = told(project, "undo", "20260809-143103")
    assert code == 0
    assert "*.log" in errors
    assert (project.directory / "data" / "notes.txt").read_text() == "before\n"
    assert (project.directory / "data" / "x.log").read_text() == "log"


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (("/usr/bin/python3", "-c", "open('data/notes.txt', 'w').write('after')"), "CheckpointError"),
        (("/bin/sh", "-c", "echo after > data/notes.txt"), "Read-only file system"),
    ],
    ids=["Python", "a shell"],
)
def test_without_a_checkpoint_nothing_is_changed(project: Project, command: tuple[str, ...], word: str) -> None:
    found = snapback(project, "echo 'snapback: error: no room' >&2; exit 1")
    done = checked(project, *command, environment=found)
    assert done.exit_code != 0
    assert word in done.stderr
    assert (project.directory / "data" / "notes.txt").read_text() == "before\n"
    assert "no room" in the_checkpoint(done)[1]["result"]["error"]
    assert "taken before" not in done.text


def test_a_directory_that_was_replaced_after_the_run_began_is_not_taken_for_the_one_it_shows(project: Project) -> None:
    program = "import sys; print('ready', flush=True); sys.stdin.readline(); open('data/notes.txt', 'w').write('after')"
    running = subprocess.Popen(
        [*project.command, "run", "--checkpoint", "--", "/usr/bin/python3", "-c", program],
        cwd=project.directory,
        env=project.environ(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    os.rename(project.directory / "data", project.directory / "moved")
    (project.directory / "data").mkdir()
    out, errors = running.communicate("\n", timeout=60)
    assert running.returncode != 0
    assert "is not what it was when the run began" in errors
    assert "taken before" not in out
    assert (project.directory / "moved" / "notes.txt").read_text() == "before\n"


def test_a_run_whose_runner_was_killed_is_undone_by_force(project: Project) -> None:
    before = state_of(project.directory / "data")
    running = subprocess.Popen(
        [*project.command, "run", "--checkpoint", "--", "/bin/sh", "-c", "echo x > data/notes.txt; echo on; sleep 60"],
        cwd=project.directory,
        env=project.environ(),
        stdout=subprocess.PIPE,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == b"on\n"
    for words in (("undo", "--force"), ("changes", "--force")):
        code, _, errors = told(project, *words)
        assert code == 1
        assert "goes on" in errors
    running.send_signal(signal.SIGKILL)
    running.wait()
    code, _, errors = told(project, "undo")
    assert code == 1
    assert "cut off" in errors
    assert "M data/notes.txt" in told(project, "changes", "--force")[1]
    assert told(project, "undo", "--force")[0] == 0
    assert state_of(project.directory / "data") == before


def test_a_trace_may_lie_elsewhere(project: Project) -> None:
    trace = project.state / "t.jsonl"
    project.run("/bin/sh", "-c", "echo x > data/new", options=("--checkpoint", "-t", str(trace)))
    assert told(project, "undo")[0] == 0
    assert not (project.directory / "data" / "new").exists()


@pytest.mark.parametrize("rule", ["read: .", "write: ."])
def test_no_run_sees_what_checkpoints_keep(project: Project, rule: str) -> None:
    checked(project, "/bin/sh", "-c", "echo x > data/new")
    assert os.listdir(project.directory / ".agentbox" / "checkpoints")
    project.policy(rule, "write: ./out", "exec: ls")
    for options in ((), ("--checkpoint",)):
        done = project.run("/bin/sh", "-c", "ls -A .agentbox/checkpoints/ && echo > out/x", options=options)
        assert "2026" not in done.text.split("agentbox: ")[0]


@pytest.mark.parametrize(
    ("options", "command", "tool"),
    [
        (("--isolation", "guard"), WAYS["a guarded Python"], "fs.open_write"),
        (("--observe",), ("/bin/sh", "-c", "echo after > data/notes.txt"), "start"),
    ],
    ids=["the guard alone", "a shell that is only observed"],
)
def test_without_a_wall_the_guard_asks_or_the_command_waits(
    project: Project, options: tuple[str, ...], command: tuple[str, ...], tool: str
) -> None:
    before = state_of(project.directory / "data")
    done = project.run(*command, options=("--checkpoint", *options))
    assert done.exit_code == 0, done
    record = the_checkpoint(done)[1]
    assert record["args"]["tool"] == tool
    assert undone(project, record["result"]["snapshot"])
    assert state_of(project.directory / "data") == before
    found = snapback(project, "exit 1")
    refused = project.run(*command, options=("--checkpoint", *options), environment=found)
    assert refused.exit_code != 0
    assert state_of(project.directory / "data") == before


@pytest.fixture(scope="module")
def by_ordinary_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    if os.geteuid() != 0:
        not_here("only root can become another user")
    del tmp_path_factory
    with ordinary_user() as user:
        project = new_project(user.directory("undo"))
        project.command = (*user.command, "-m", "agentbox.cli.main")
        project.environment = dict(user.environment)
        project.policy("read: .", "write: ./data")
        for name, mode in (("data/closed/file", 0o600), ("data/unreadable", 0o000), ("data/notes.txt", 0o644)):
            project.file(name, name, mode)
        (project.directory / "data" / "closed").chmod(0o500)
        subprocess.run(["chown", "-R", f"{user.uid}:{user.uid}", str(project.directory.parent)], check=True)
        yield project


def test_an_ordinary_user_undoes_what_happened_in_directories_that_were_closed(by_ordinary_user: Project) -> None:
    project = by_ordinary_user
    before = state_of(project.directory / "data")
    work = "chmod 700 data/closed; echo x > data/closed/file; echo > data/closed/new; chmod 000 data/closed; "
    done = checked(project, "/bin/sh", "-c", work + "rm -f data/unreadable; echo y > data/notes.txt")
    assert done.exit_code == 0, done
    the_checkpoint(done)
    code, words, errors = told(project, "undo")
    assert (code, errors) == (0, ""), words
    assert state_of(project.directory / "data") == before


def test_what_an_ordinary_user_cannot_read_is_no_checkpoint_and_no_change(by_ordinary_user: Project) -> None:
    project = by_ordinary_user
    secret = project.file("data/of-root", "secret", 0o600)
    done = checked(project, "/bin/sh", "-c", "echo z > data/notes.txt")
    assert "Read-only file system" in done.stderr
    assert "of-root cannot be saved" in the_checkpoint(done)[1]["result"]["error"]
    assert (project.directory / "data" / "notes.txt").read_text() == "data/notes.txt"
    project.file("snapback.toml", '[snapshot]\nignore = ["of-root"]\n')
    the_checkpoint(checked(project, "/bin/sh", "-c", "echo z > data/notes.txt"))
    assert told(project, "undo")[0] == 0
    assert secret.read_text() == "secret"
