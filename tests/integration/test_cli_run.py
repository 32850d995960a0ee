# SPDX-License-Identifier: MIT
"""`agentbox run` and `agentbox init`, by their contract: exit codes, streams, files, errors."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adversarial.host_state import until
from tests.conftest import not_here
from tests.policy_run import AGENTBOX, SYSTEM_PATH, Project, new_project

pytestmark = pytest.mark.linux


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = new_project(tmp_path)
    made.policy("read: ./src", "write: ./out", "exec: echo, ls, cat, sleep, touch, sh, id")
    made.file("src/note.txt", "hello\n")
    return made


def _last_line(stdout: bytes) -> str:
    return stdout.decode(errors="replace").splitlines()[-1]


def test_init_writes_a_policy_once(project: Project) -> None:
    (project.directory / "agentbox.policy").unlink()
    first, second = (
        subprocess.run([*AGENTBOX, "init"], cwd=project.directory, capture_output=True, text=True) for _ in range(2)
    )
    assert (first.returncode, first.stdout) == (0, "wrote agentbox.policy\n")
    assert second.returncode == 1
    assert "exists already" in second.stderr
    assert "Traceback" not in second.stderr
    assert project.run("true").exit_code == 0


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -KILL $$", 128 + signal.SIGKILL),
        ("kill -TERM $$", 128 + signal.SIGTERM),
        ("kill -SEGV $$", 128 + signal.SIGSEGV),
    ],
)
def test_exit_code_is_the_command_s_own_and_128_more_than_a_signal(
    project: Project, script: str, expected: int
) -> None:
    done = project.run("sh", "-c", script)
    assert done.exit_code == expected
    assert project.verdict()[0] == 0


def test_last_line_on_stdout_says_what_was_recorded(project: Project) -> None:
    done = project.run("echo", "hello")
    first, last = done.text.splitlines()
    assert first == "hello"
    assert last.startswith("agentbox: recorded 0 effects, 1 observations, 0 denials -> .agentbox/runs/")
    assert (project.directory / last.rpartition(" ")[2]).is_file()


def test_quiet_leaves_stdout_to_the_command(project: Project) -> None:
    content = os.urandom(3 << 20)
    done = project.run("cat", options=["--quiet"], stdin=content)
    assert done.stdout == content
    assert done.stderr == ""


def test_json_is_one_object_on_stderr_and_stdout_stays_the_command_s(project: Project) -> None:
    done = project.run("sh", "-c", "echo out; exit 4", options=["--json"])
    assert done.stdout == b"out\n"
    summary = json.loads(done.stderr)
    assert summary["exit_code"] == 4
    assert summary["recorded"] is True
    # No way out was asked for, so nothing of that is missing.
    assert [note.partition(":")[0] for note in summary["notes"]] == ["clocks and randomness are not recorded"]
    assert Path(summary["trace"]).is_file()


def test_files_are_read_and_written_through_redirections(project: Project, tmp_path: Path) -> None:
    source, target = tmp_path / "in.bin", tmp_path / "out.bin"
    source.write_bytes(os.urandom(1 << 20))
    with source.open("rb") as given, target.open("wb") as taken:
        code = subprocess.run(
            [*AGENTBOX, "run", "-q", "--", "cat"],
            cwd=project.directory,
            env=project.environ(),
            stdin=given,
            stdout=taken,
        ).returncode
    assert code == 0
    assert target.read_bytes() == source.read_bytes()


def test_a_reader_that_goes_away_ends_the_command_with_sigpipe_and_the_run_is_recorded(project: Project) -> None:
    with subprocess.Popen(
        [*AGENTBOX, "run", "--", "yes"],
        cwd=project.directory,
        env=project.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == b"y\n"
        running.stdout.close()
        said = running.stderr.read()
        assert running.wait(60) == 128 + signal.SIGPIPE
    assert said == b""
    assert project.verdict()[0] == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_closed_are_empty_and_nothing_of_ours(project: Project, closed: str) -> None:
    probe = (
        "import os; seen = [os.readlink(f'/proc/self/fd/{n}') for n in range(3)]; "
        "os.write(os.open('out/seen', os.O_WRONLY | os.O_CREAT), repr(seen).encode())"
    )
    command = " ".join([*AGENTBOX, "run", "-q", "--", "/usr/bin/python3", "-I", "-c", f'"{probe}"'])
    (project.directory / "out").mkdir()
    done = subprocess.run(["sh", "-c", f"{command} {closed}"], cwd=project.directory, env=project.environ())
    assert done.returncode == 0
    seen = (project.directory / "out" / "seen").read_text()
    assert "socket" not in seen
    assert "anon_inode" not in seen
    assert "null" in seen


def test_what_runs_in_the_background_ends_with_the_command(project: Project) -> None:
    done = project.run("sh", "-c", "sleep 987 & echo $!")
    assert done.exit_code == 0
    assert not [name for name in os.listdir("/proc") if name.isdigit() and _command_of(name) == b"sleep\x00987\x00"]


def _command_of(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_of_the_runner_reach_the_command(project: Project, number: signal.Signals) -> None:
    code = (
        "import signal, sys\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\n"
        "signal.pause()"
    )
    with _started(project, code) as running:
        running.send_signal(number)
        assert running.wait(60) == 7
    assert project.verdict()[0] == 0


def test_a_second_interrupt_ends_a_command_that_ignores_the_first(project: Project) -> None:
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGINT, lambda *_: os.write(1, b'no\\n'))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()"
    )
    with _started(project, code) as running:
        running.send_signal(signal.SIGINT)
        assert running.stdout is not None
        assert running.stdout.readline() == b"no\n"
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 128 + signal.SIGKILL
    assert project.verdict()[0] == 0


def test_a_stopped_runner_stops_its_command_and_both_go_on(project: Project) -> None:
    with _started(project, "print('ready', flush=True)\nimport sys\nsys.stdin.readline()  # stopped") as running:
        (inside,) = [
            int(name)
            for name in filter(str.isdigit, os.listdir("/proc"))
            if b"# stopped" in _command_of(name) and b"cli.main" not in _command_of(name)
        ]
        running.send_signal(signal.SIGTSTP)
        until(lambda: _state(inside) == "T" and _state(running.pid) == "T", "one of them was not stopped")
        running.send_signal(signal.SIGCONT)
        until(lambda: _state(inside) != "T", "the command was not continued")
        assert running.stdin is not None
        running.stdin.write(b"on\n")
        running.stdin.close()
        assert running.wait(60) == 0


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextlib.contextmanager
def _started(project: Project, code: str) -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen(
        [*AGENTBOX, "run", "-q", "--", "/usr/bin/python3", "-I", "-c", code],
        cwd=project.directory,
        env=project.environ(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # A group of its own, with a parent in its session: else nothing could continue it, and it would not stop.
        process_group=0,
    )
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        yield running
    finally:
        running.kill()
        running.wait()
        running.stdout.close()


def test_a_missing_policy_names_init(project: Project) -> None:
    (project.directory / "agentbox.policy").unlink()
    done = project.run("true")
    assert done.exit_code == 1
    assert "agentbox init" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_policy_is_shown_with_line_column_and_caret(project: Project) -> None:
    project.policy("read: ./src", "frob: x")
    done = project.run("true")
    assert done.exit_code == 1
    assert "agentbox.policy:2:1" in done.stderr
    assert "    frob: x\n    ^" in done.stderr
    assert not (project.directory / ".agentbox").exists()


def test_a_policy_that_cannot_be_held_leaves_nothing(project: Project) -> None:
    project.policy("read: ./src")
    done = project.run("/usr/bin/python3", "-S", "-c", "pass", options=("--isolation", "guard"))
    assert done.exit_code == 70
    assert "failed to arm sandbox, refusing to run" in done.stderr
    assert not (project.directory / ".agentbox").exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["nonexistent-program"], "there is no program"),
        (["./src/note.txt"], "there is no program"),
        ([], "no command given"),
    ],
)
def test_a_program_that_is_not_there_is_a_usage_error(project: Project, command: list[str], words: str) -> None:
    done = project.run(*command)
    assert done.exit_code == 2
    assert words in done.stderr
    assert "hint: " in done.stderr


def test_a_script_without_a_first_line_is_explained(project: Project) -> None:
    project.file("src/script", "echo x\n", 0o755)
    done = project.run("src/script")
    assert done.exit_code == 2
    assert "#!/bin/sh" in done.stderr


def test_a_deleted_working_directory_is_explained(project: Project) -> None:
    done = subprocess.run(
        [
            "sh",
            "-c",
            f"mkdir gone && cd gone && rmdir ../gone && {' '.join(AGENTBOX)} run -p ../agentbox.policy -- true",
        ],
        cwd=project.directory,
        env=project.environ(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "working directory" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_existing_trace_is_not_overwritten(project: Project) -> None:
    mine = project.file("mine.jsonl", "keep\n")
    done = project.run("true", options=["-t", "mine.jsonl"])
    assert done.exit_code == 1
    assert "exists already" in done.stderr
    assert mine.read_text() == "keep\n"


def test_each_run_has_a_trace_and_the_link_leads_to_the_last(project: Project) -> None:
    for word in ("one", "two"):
        project.run("echo", word)
    first, second = project.traces()
    assert (project.directory / "trace.jsonl").samefile(max(first, second, key=lambda path: path.stat().st_mtime_ns))
    assert project.verdict(first)[0] == project.verdict(second)[0] == 0


def test_a_trace_outgrowing_its_disk_ends_the_run_with_the_code_of_an_incomplete_trace(
    project: Project, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        not_here("only root can mount a small file system")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], check=True)
    try:
        endless = "while :; do /bin/echo " + "x" * 2000 + " > /dev/null; done"
        done = project.run("sh", "-c", endless, options=["-t", str(small / "t.jsonl")])
        assert done.exit_code == 5
        assert "cannot be written" in done.stderr
        assert project.verdict(small / "t.jsonl")[0] != 0
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_a_read_only_project_is_explained(project: Project) -> None:
    if os.geteuid() != 0:
        not_here("only root can make a mount read-only")
    where = str(project.directory)
    subprocess.run(["mount", "--bind", where, where], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", where], check=True)
        done = project.run("true")
        assert done.exit_code == 1
        assert "cannot be made" in done.stderr
        assert "-t" in done.stderr
    finally:
        subprocess.run(["umount", "-l", where], check=True)


def test_write_grants_that_are_missing_are_made_and_taken_back_when_unused(project: Project) -> None:
    project.policy("write: ./out, ./deep/er/still", "exec: touch")
    project.run("true")
    assert not (project.directory / "out").exists()
    assert not (project.directory / "deep").exists()
    project.run("touch", "out/a", "deep/er/still/b")
    assert (project.directory / "out" / "a").exists()
    assert (project.directory / "deep" / "er" / "still" / "b").exists()


def test_what_root_s_command_writes_belongs_to_the_project_s_owner(project: Project) -> None:
    if os.geteuid() != 0:
        not_here("only root can give files away")
    for path in (project.directory, *project.directory.rglob("*")):
        os.chown(path, 4321, 4321)
    done = project.run("sh", "-c", "cat src/note.txt; echo x > out/made")
    assert done.text.startswith("hello"), done
    made = project.directory / "out" / "made"
    assert (made.stat().st_uid, made.parent.stat().st_uid) == (4321, 4321)


@pytest.mark.parametrize(
    ("rules", "layer", "warned"),
    [
        (("read: ./src", "limits: disk_mb=64"), "kernel", False),
        (("write: ./out", "limits: disk_mb=64"), "none", True),
        (("write: ./out max=1MB", "limits: disk_mb=64"), "interpreter", False),
        (("write: ./out",), "none", False),
    ],
)
def test_a_disk_limit_claims_nothing_for_directories_of_the_host(
    project: Project, rules: tuple[str, ...], layer: str, warned: bool
) -> None:
    project.policy(*rules)
    done = project.run("true", options=["--json"])
    summary = json.loads(done.stderr.splitlines()[-1])
    assert summary["enforcement"]["disk"] == layer
    assert ("disk_mb" in str(summary["warnings"])) is warned, summary


def test_the_trace_of_root_s_run_is_the_project_s_owner_s_and_in_no_program_s_way(project: Project) -> None:
    if os.geteuid() != 0:
        not_here("only root can give files away")
    os.chown(project.directory, 4321, 4321)
    project.policy("read: .")
    code = "import os; print([entry.is_file() for entry in os.scandir('.') if entry.name == 'trace.jsonl'])"
    done = project.run("/usr/bin/python3", "-I", "-c", code)
    assert done.text.startswith("[True]"), done
    (trace,) = project.traces()
    assert {path.stat().st_uid for path in (trace, *list(trace.parents)[:3])} == {4321}
    assert project.verdict()[0] == 0


def test_a_project_that_only_root_enters_is_usable(project: Project) -> None:
    project.directory.chmod(0o700)
    project.file("src/private.txt", "private\n", 0o600)
    done = project.run("cat", "src/private.txt")
    assert done.text.startswith("private\n"), done


def test_grants_by_the_name_of_a_link_work_by_that_name(project: Project, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere"
    real.mkdir()
    (real / "data.txt").write_text("linked\n")
    (project.directory / "data").symlink_to(real)
    project.policy("read: ./data", "exec: cat")
    assert project.run("cat", "data/data.txt").text.startswith("linked\n")


def test_a_single_file_can_be_granted(project: Project) -> None:
    project.file("one.txt", "one\n")
    project.file("other.txt", "other\n")
    project.policy("write: ./one.txt", "exec: cat")
    done = project.run("sh", "-c", "echo more >> one.txt; cat one.txt; cat other.txt")
    assert done.text.startswith("one\nmore\n")
    assert "other\n" not in done.text
    assert (project.directory / "one.txt").read_text() == "one\nmore\n"


def test_nested_rules_hold_each_its_own(project: Project) -> None:
    project.file("work/fixed/a", "a\n")
    project.file("work/hidden/b", "b\n")
    project.policy("write: ./work", "deny: write ./work/fixed", "deny: read ./work/hidden", "exec: cat")
    script = "echo x > work/fixed/a; echo x > work/hidden/b; cat work/hidden/b; echo new > work/c; cat work/fixed/a"
    done = project.run("sh", "-c", script)
    assert done.text.splitlines()[0] == "a", done
    assert (project.directory / "work" / "fixed" / "a").read_text() == "a\n"
    assert (project.directory / "work" / "hidden" / "b").read_text() == "b\n"
    assert (project.directory / "work" / "c").read_text() == "new\n"


@pytest.mark.parametrize("directory", ["/", "/dev/shm", "/tmp", "~"])
def test_runs_start_in_any_directory(project: Project, directory: str, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    where = os.path.expanduser(directory)
    done = subprocess.run(
        [*AGENTBOX, "run", "-q", "-p", project.directory / "agentbox.policy", "-t", trace, "--", "sh", "-c", "pwd"],
        cwd=where,
        env=project.environ(),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.strip()) == (0, os.path.realpath(where)), done


@pytest.mark.parametrize("rule", ["read: /", "write: /tmp", "read: /run", "read: /proc, /dev"])
def test_grants_around_the_box_s_own_directories_work(project: Project, rule: str, tmp_path: Path) -> None:
    if rule == "read: /" and os.geteuid() != 0:
        not_here("not everything below / can be shown by an ordinary user")
    project.policy(rule, "exec: cat, ls")
    done = project.run("sh", "-c", f"ls {project.state}; echo $HOME; ls -d $HOME; echo x > /dev/null && echo null")
    assert done.exit_code == 0, done
    assert "null" in done.text
    assert "trace\n" not in done.text


def test_an_allowed_program_outside_the_system_is_shown(project: Project, tmp_path: Path) -> None:
    tool = tmp_path / "tools" / "greet"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho greetings\n")
    tool.chmod(0o755)
    project.policy(f"exec: {tool}")
    done = project.run("sh", "-c", str(tool))
    assert done.text.startswith("greetings\n"), done


def test_files_with_a_set_user_id_cannot_be_planted(project: Project) -> None:
    code = (
        "import os\n"
        "fd = os.open('out/tool', os.O_WRONLY | os.O_CREAT, 0o755)\n"
        "for act in (lambda: os.chmod('out/tool', 0o4755), lambda: os.fchmod(fd, 0o2755),\n"
        "            lambda: os.open('out/s', os.O_CREAT, 0o4755), lambda: os.mknod('out/n', 0o104755)):\n"
        "    try: act()\n"
        "    except OSError as error: print(type(error).__name__)\n"
    )
    done = project.python(code)
    assert done.exit_code == 0, done
    for path in (project.directory / "out").iterdir():
        assert not path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID), path


def test_an_ordinary_user_s_run_works_and_owns_what_it_wrote(standings: object, tmp_path: Path) -> None:
    standing = standings("user")  # type: ignore[operator]
    if standing.user is None:
        not_here("the other tests run as an ordinary user already")
    home = standing.user.directory("policy-run")
    for name in ("project", "state"):
        (home / name).mkdir()
        os.chown(home / name, standing.uid, standing.uid)
    project = Project(
        home / "project", home / "state", (*standing.command, "-m", "agentbox.cli.main"), dict(standing.environment)
    )
    project.policy("write: ./out", "exec: id, touch")
    done = project.run("sh", "-c", "id -u; touch out/a")
    assert done.exit_code == 0, done
    assert (project.directory / "out" / "a").stat().st_uid == standing.uid
    assert project.verdict()[0] == 0


@pytest.mark.parametrize("protect", ["off", "on"])
def test_files_that_run_later_are_named_at_the_end_whatever_wrote_them(project: Project, protect: str) -> None:
    project.file("out/old.txt", "x")
    project.policy("write: ./out", "exec: touch, mkdir", f"protect: {protect}")
    done = project.run("/bin/sh", "-c", "touch out/.envrc out/plain; mkdir out/.git; echo x > out/.git/config")
    assert done.exit_code == 0, done.stderr
    assert "out/.envrc was written: a shell" in done.stderr
    assert "plain" not in done.stderr
    found = [one["args"]["path"] for one in done.records if one["op"] == "fs.startup_file"]
    assert found == [f"{project.directory}/out/.envrc", f"{project.directory}/out/.git/config"]


def test_a_file_is_read_once_by_all_processes_of_a_run(project: Project) -> None:
    project.file("key", "SECRET")
    project.policy("read-once: ./key", "exec: python3")
    code = (
        "import subprocess, sys\n"
        "for _ in range(2):\n"
        "    done = subprocess.run(['python3', '-c', 'print(open(\"key\").read())'], capture_output=True, text=True)\n"
        "    print(done.stdout.strip() or done.stderr.strip().splitlines()[-1])\n"
    )
    done = project.python(code)
    denied = f"PermissionError: agentbox: policy denies read {project.directory}/key"
    assert done.text.splitlines()[:2] == ["SECRET", denied], done.stderr
    assert done.denials("read", "supervisor") == [f"{project.directory}/key"]
    assert "`read-once: ./key` is held by the guard" in done.stderr


@pytest.mark.parametrize("options", [(), ("--isolation", "guard")])
def test_processes_of_a_run_share_the_bytes_below_a_cap(project: Project, options: tuple[str, ...]) -> None:
    project.file("out/old", "x" * 200)
    project.policy("write: ./out max=1KB", "exec: python3")
    code = (
        "import os\n"
        "def write(name, size):\n"
        "    try:\n"
        "        with open(name, 'w') as file: file.write('x' * size)\n"
        "        return 0\n"
        "    except PermissionError: return 1\n"
        "pid = os.fork()\n"
        "if not pid: os._exit(write('out/a', 700))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), write('out/b', 200), write('out/c', 100))\n"
    )
    done = project.python(code, options=options)
    assert done.text.splitlines()[0] == "0 1 0", done.stderr
    assert set(done.denials("write", "supervisor")) == {f"{project.directory}/out/b"}


@pytest.mark.parametrize("options", [(), ("--isolation", "guard")])
def test_a_rule_means_the_program_behind_a_version_managers_shim(project: Project, options: tuple[str, ...]) -> None:
    manager = project.directory.parent / ".pyenv"
    (manager / "versions/3.11/bin").mkdir(parents=True)
    (manager / "versions/3.11/bin/python3").symlink_to("/usr/bin/python3")
    (manager / "version").write_text("3.11\n")
    (manager / "shims").mkdir()
    (manager / "shims/python3").write_text("#!/bin/sh\necho the manager itself ran\n")
    (manager / "shims/python3").chmod(0o755)
    project.policy("exec: python3")
    code = "import subprocess; subprocess.run(['python3', '-c', 'print(1 + 1)'], check=True)"
    path = {"PATH": f"{manager}/shims:{SYSTEM_PATH}"}
    done = project.run("python3", "-c", code, options=options, environment=path)
    assert done.text.splitlines()[0] == "2", done.stderr
    assert done.denials() == done.denials("exec", "guest") == []
