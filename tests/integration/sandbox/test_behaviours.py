# SPDX-License-Identifier: MIT
"""The behaviours of spec/sandbox/behaviours.json, on every face of a sandbox: synchronous and asynchronous, with a box
of this process and with one behind a real server."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentbox.errors import NotFoundError, PolicySyntaxError, SandboxError, SandboxGoneError
from agentbox.models import Layer
from tests.conftest import REPOSITORY
from tests.integration.commands import agentbox
from tests.integration.sandbox import faces
from tests.integration.sandbox.faces import Face
from tests.running_server import RunningServer

KEY = "key-of-the-tests"
BEHAVIOURS = json.loads((REPOSITORY / "spec/sandbox/behaviours.json").read_text())["behaviours"]
EVERY_BYTE = bytes(range(256))


@pytest.fixture(scope="module")
def kept_server(start_server: Callable[..., RunningServer]) -> RunningServer:
    """A server for sandboxes."""
    return start_server(AGENTBOX_TOKEN=KEY)


@pytest.fixture(scope="module", params=faces.NAMES)
def face(
    request: pytest.FixtureRequest, kept_server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Face]:
    """Each face in turn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTBOX_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        found = Face(request.param, kept_server.url, KEY)
        yield found
        found.close()


@pytest.fixture(scope="module")
def box(face: Face) -> Any:
    """A sandbox that tests leave running; files of each lie in a directory of its own."""
    return face.start(memory="512m", pids_limit=200, env={"NAME": "box"}, exec_timeout=30)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A path of this machine where nothing is."""
    return tmp_path / "copied"


def test_every_behaviour_of_the_list_has_a_test() -> None:
    assert [one["number"] for one in BEHAVIOURS] == list(range(1, len(BEHAVIOURS) + 1))
    missing = [one["name"] for one in BEHAVIOURS if f"test_{one['name']}" not in globals()]
    assert missing == []


# ---- commands


def test_exec_of_a_text_gives_both_streams_and_the_exit_code(box: Any) -> None:
    done = box.exec("echo out; echo err >&2; exit 3")
    assert (done.exit_code, done.running, done.stdout) == (3, False, b"out\nerr\n")
    assert done.text() == "out\nerr\n"


def test_exec_of_words_keeps_stderr_apart_when_asked(box: Any) -> None:
    done = box.exec(["sh", "-c", "echo out; echo err >&2"], merged=False)
    assert (done.stdout, done.stderr, done.exit_code) == (b"out\n", b"err\n", 0)


def test_a_program_that_is_not_there_is_an_error_with_errno_and_name(box: Any) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        box.exec(["no-such-program"])
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, "no-such-program")
    with pytest.raises(ValueError, match="empty command"):
        box.exec([])
    with pytest.raises(ValueError, match="zero byte"):
        box.exec(["echo", "a\0b"])


def test_a_signal_is_128_and_its_number(box: Any) -> None:
    done = box.exec("kill -SEGV $$")
    assert (done.exit_code, done.signal) == (139, 11)


def test_a_timeout_ends_the_command_and_is_said(box: Any) -> None:
    done = box.exec("sleep 1000", timeout=0.3)
    assert (done.timed_out, done.running) == (True, False)


def test_waiting_ends_nothing(box: Any) -> None:
    command = box.exec("read x; echo done", stdin=True, wait=0)
    assert command.running
    assert command.exit_code is None
    assert not command.wait(0.01)
    command.send("\n")
    assert command.wait()
    assert (command.stdout, command.exit_code) == (b"done\n", 0)


def test_stdin_is_read_to_its_end(box: Any) -> None:
    for data in (EVERY_BYTE * 1200, b"a little \xff", b""):
        assert box.exec("cat", stdin=data).stdout == data


def test_open_input_takes_pieces_until_it_is_closed(box: Any) -> None:
    command = box.exec("cat", stdin=True, wait=0)
    command.send("one ")
    command.send(b"two")
    command.close_stdin()
    assert command.wait(30)
    assert command.stdout == b"one two"
    with pytest.raises(SandboxError, match="ended"):
        command.send("three")


def test_kill_ends_everything_that_a_command_started(box: Any) -> None:
    command = box.exec("sleep 1000 & setsid sleep 1000 & echo ready; wait", wait=0)
    command.more(0)
    assert command.kill() == 0
    assert (command.exit_code, command.running) == (143, False)
    assert box.exec("pgrep -c sleep").stdout == b"0\n"


def test_a_signal_reaches_the_process_group(box: Any) -> None:
    command = box.exec("trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.05; done", wait=0)
    command.more(0)
    command.send_signal(2)
    assert command.wait(30)
    assert (command.exit_code, command.stdout) == (7, b"ready\ncaught\n")


def test_a_terminal_has_a_size_which_can_change(box: Any) -> None:
    command = box.exec("stty size; read line; stty size", terminal=(24, 80), stdin=True, wait=0)
    command.more(0)
    command.resize(30, 100)
    command.send("\n")
    assert command.wait(30)
    assert command.stdout.split() == [b"24", b"80", b"30", b"100"]


def test_directory_and_variables_are_the_commands_own(box: Any) -> None:
    box.files.make_directory("sub")
    assert box.exec("pwd; echo $NAME", cwd="sub").stdout == b"/work/sub\nbox\n"
    assert box.exec("echo ${NAME-none} $OTHER", env={"NAME": None, "OTHER": "x"}).stdout == b"none x\n"


def test_output_is_read_by_offset(box: Any) -> None:
    done = box.exec("printf 0123456789")
    assert done.read(4, 3) == (4, b"456")
    assert done.read(10)[1] == b""


def test_long_output_is_whole(box: Any) -> None:
    done = box.exec("head -c 3000000 /dev/zero | tr '\\0' x")
    assert done.stdout == b"x" * 3_000_000


def test_output_that_is_no_text_stays_as_it_is(box: Any) -> None:
    assert box.exec("printf '\\377\\000\\376'").stdout == b"\xff\0\xfe"


def test_commands_run_at_the_same_time(box: Any) -> None:
    # Each waits for the one after it: they end only when all of them run.
    box.exec("mkdir -p turn; for n in 0 1 2 3 4 5 6 7; do mkfifo turn/$n; done")
    with ThreadPoolExecutor(8) as pool:
        script = "if [ %d = 7 ]; then echo go >turn/7; else read x <turn/%d; echo go >turn/%d; fi; echo %d"
        wanted = [script % (n, n + 1, n, n) for n in range(8)]
        running = [pool.submit(box.exec, text, timeout=30) for text in wanted]
        assert box.exec("cat turn/0", timeout=30).stdout == b"go\n"
        assert [one.result().stdout for one in running] == [f"{n}\n".encode() for n in range(8)]


def test_what_a_background_process_writes_later_is_kept(box: Any) -> None:
    box.exec("mkfifo later")
    command = box.exec("(read x <later; echo later) & echo now")
    assert command.stdout == b"now\n"
    box.exec("echo go >later")
    command.more(4)
    assert command.stdout == b"now\nlater\n"


def test_output_comes_as_it_is_written(box: Any) -> None:
    command = box.exec("echo one; read x; echo two >&2", stdin=True, merged=False, wait=0)
    found = []
    for stream, data in command.follow():
        found.append((stream, data))
        if stream == "stdout":
            assert command.running
            command.send("\n")
    assert found == [("stdout", b"one\n"), ("stderr", b"two\n")]
    assert command.wait()


# ---- files


def test_a_file_comes_back_as_it_was_written(box: Any) -> None:
    box.files.write("made/for/it.bin", EVERY_BYTE * 1000, mode=0o640)
    assert box.files.read("made/for/it.bin") == EVERY_BYTE * 1000
    found = box.files.info("made/for/it.bin")
    assert (found.path, found.kind, found.size, found.mode) == ("/work/made/for/it.bin", "file", 256_000, 0o640)
    box.files.write("text", "ümläut\n")
    assert box.files.read_text("text") == "ümläut\n"


def test_a_file_is_appended_to_or_new(box: Any) -> None:
    box.files.write("grows", "one", how="new")
    box.files.write("grows", [b" two", b" three"], how="append")
    assert box.files.read("grows") == b"one two three"
    with pytest.raises(FileExistsError) as caught:
        box.files.write("grows", "four", how="new")
    assert caught.value.filename == "/work/grows"


def test_errors_of_files_are_those_of_local_files(box: Any) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        box.files.read("nothing")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, "/work/nothing")
    box.files.make_directory("directory")
    with pytest.raises(IsADirectoryError):
        box.files.read("directory")
    with pytest.raises(OSError, match="/proc/nothing"):
        box.files.write("/proc/nothing", "x")
    box.files.write("a-file", "x")
    with pytest.raises((NotADirectoryError, FileNotFoundError)):
        box.files.info("a-file/below")


def test_a_directory_is_listed_without_following_links(box: Any) -> None:
    box.exec("mkdir -p seen/below; echo 1 >seen/file; echo 2 >seen/below/file; ln -s /etc/passwd seen/link")
    found = box.files.list("seen")
    assert [(one.name, one.kind) for one in found] == [("below", "directory"), ("file", "file"), ("link", "link")]
    assert found[2].target == "/etc/passwd"
    assert "/work/seen/below/file" in [one.path for one in box.files.list("seen", depth=-1)]
    assert box.files.info("seen/link").kind == "link"
    with pytest.raises(FileNotFoundError):
        box.files.list("unseen")


def test_directories_are_made_names_changed_things_removed(box: Any) -> None:
    box.files.make_directory("x/y")
    box.files.make_directory("x/y")
    box.files.rename("x/y", "x/z")
    assert [box.files.exists("x/y"), box.files.exists("x/z")] == [False, True]
    box.files.remove("x")
    assert not box.files.exists("x")
    with pytest.raises(FileNotFoundError):
        box.files.remove("x")


def test_a_part_of_a_file_is_read(box: Any) -> None:
    box.files.write("digits", "0123456789")
    assert box.files.read("digits", offset=2, length=5) == b"23456"
    assert b"".join(box.files.stream("digits", offset=7)) == b"789"
    with pytest.raises(OSError, match="digits") as caught:
        box.files.read("digits", max_bytes=5)
    assert caught.value.errno == errno.EFBIG


def test_a_file_travels_with_its_mode(box: Any, tmp_path: Path, place: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(2_000_000))
    source.chmod(0o755)
    assert box.files.upload(source, "tool") == 2_000_000
    assert box.files.info("tool").mode == 0o755
    assert box.files.download("tool", place) == 2_000_000
    assert place.read_bytes() == source.read_bytes()
    with pytest.raises(FileExistsError):
        box.files.download("tool", place)


def test_a_directory_travels_without_its_links(box: Any, tmp_path: Path, place: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "empty").mkdir(parents=True)
    (tree / "deep" / ("long" * 40)).mkdir(parents=True)
    (tree / "deep" / ("long" * 40) / "file").write_text("x" * 700)
    (tree / "run.sh").write_text("echo run")
    (tree / "run.sh").chmod(0o755)
    (tree / "link").symlink_to("/etc/hostname")
    assert box.files.upload(tree, "tree") == 708
    assert box.exec("cd tree; ls; ./run.sh").stdout == b"deep\nempty\nrun.sh\nrun\n"
    box.exec("ln -s /etc/passwd tree/inside; mkfifo tree/pipe")
    assert box.files.download("tree", place) == 708
    found = sorted(str(one.relative_to(place)) for one in place.rglob("*"))
    assert found == ["deep", f"deep/{'long' * 40}", f"deep/{'long' * 40}/file", "empty", "run.sh"]
    assert (place / "run.sh").read_text() == "echo run"


def test_names_may_be_any_but_a_zero_byte(box: Any) -> None:
    names = ["with blank", "umläut ☃", "new\nline", "-n", "?a=b&c#d%20", os.fsdecode(b"no \xff utf-8")]
    for name in names:
        box.files.write(f"names/{name}", name.encode("utf-8", "surrogateescape"))
    assert sorted(one.name for one in box.files.list("names")) == sorted(names)
    for name in names:
        assert box.files.read(f"names/{name}") == name.encode("utf-8", "surrogateescape")
    with pytest.raises(ValueError, match="zero byte"):
        box.files.read("a\0b")


# ---- tools for models


def test_shell_tools_answer_in_the_known_texts(box: Any) -> None:
    assert box.shell_exec("echo hello") == "exit=0\noutput:\nhello\n"
    going = box.shell_exec("echo a; sleep 1000", 0.3)
    assert going.startswith("still running after 0.")
    assert "; produced 2 new characters of output\noutput so far:\na\n" in going
    assert going.endswith("Use shell_wait to keep waiting or shell_kill to stop it.")
    assert box.shell_exec("true").startswith("ERROR: a command has been running for ")
    assert "; no new output for " in box.shell_wait(0.1)
    assert box.shell_kill().startswith("killed (exit=143)\n[SIGTERM after ")
    assert box.shell_wait() == "ERROR: no command is currently running"
    assert box.dispatch("shell_exec", {"command": "exit 4"}) == "exit=4\noutput:\n"
    with pytest.raises(KeyError):
        box.dispatch("shell_exec", {})


def test_dispatch_answers_every_tool(box: Any) -> None:
    box.dispatch("bash", {"command": "cd /tmp; X=1"})
    assert box.dispatch("bash", {"command": "pwd; echo $X"}) == "/tmp\n1\n"
    assert box.dispatch("bash", {"restart": True}) == "tool has been restarted."
    edit = "str_replace_based_edit_tool"
    made = box.dispatch(edit, {"command": "create", "path": "/work/e", "file_text": "a\nb\n"})
    assert made == "File created successfully at: /work/e"
    box.dispatch(edit, {"command": "str_replace", "path": "/work/e", "old_str": "b", "new_str": "c"})
    assert box.dispatch(edit, {"command": "view", "path": "/work/e"}) == "     1\ta\n     2\tc"
    assert box.dispatch("nothing", {}) == "ERROR: unknown tool 'nothing'"


# ---- its life


def test_reset_keeps_files_and_ends_processes(box: Any) -> None:
    box.files.write("kept", "work")
    command = box.exec("sleep 1000", wait=0)
    box.reset()
    assert command.wait(30)
    assert command.lost
    assert box.files.read("kept") == b"work"
    assert box.exec("pgrep -c sleep").stdout == b"0\n"


def test_a_box_whose_processes_are_killed_goes_on(box: Any) -> None:
    killed = box.exec("kill -9 -1")
    assert not killed.running
    assert killed.lost or killed.signal == 9
    assert box.exec("echo on").stdout == b"on\n"


def test_a_box_says_what_holds(box: Any) -> None:
    assert box.backend == "jail"
    assert box.running
    assert box.container_id
    held = box.enforcement
    assert Layer.NONE not in (held.filesystem, held.network, held.memory, held.pids)


def test_a_box_that_is_gone_is_an_error_until_reset(face: Face) -> None:
    box = face.start(idle_timeout=1)
    box.files.write("kept", "work")
    until(lambda: "gone" in box.shell_exec("true", 0) or pause(1.2))
    assert box.shell_exec("true").startswith("ERROR: sandbox is gone: it was idle for 1 s")
    with pytest.raises(SandboxGoneError, match="idle"):
        box.exec("true")
    with pytest.raises(SandboxGoneError, match="idle"):
        box.files.read("kept")
    box.reset()
    assert box.files.read("kept") == b"work"
    box.stop()


def test_what_a_policy_denies_is_told(face: Face) -> None:
    with pytest.raises(PolicySyntaxError, match="1:") as caught:
        face.start(policy="nett: a.example\n")
    assert caught.value.line == 1
    box = face.start(policy="net: allowed.example:443\n")
    connect = "import socket; socket.create_connection(('denied.example', 443), 5)"
    assert box.exec(["python3", "-c", connect]).exit_code == 1
    assert any("denied.example" in one.target for one in box.denials)
    box.stop()


def test_a_sandbox_that_does_not_run_says_so(face: Face) -> None:
    box = face.make()
    for _ in range(2):
        with pytest.raises(SandboxError, match="sandbox is not running"):
            box.exec("true")
        with pytest.raises(SandboxError, match="sandbox is not running"):
            box.files.read("x")
        assert box.shell_exec("true") == "ERROR: sandbox is not running"
        assert not box.running
        box.start()
        box.start()
        assert box.running
        box.stop()
        box.stop()


# ---- its state


def test_a_snapshot_brings_files_back(box: Any) -> None:
    box.files.write("state/f", "one")
    taken = box.snapshot("before")
    box.files.write("state/f", "two")
    box.files.make_directory("state/more")
    box.restore(taken.snapshot_id)
    assert box.files.read("state/f") == b"one"
    assert not box.files.exists("state/more")
    assert [(one.snapshot_id, one.name) for one in box.snapshots()] == [(taken.snapshot_id, "before")]
    box.delete_snapshot(taken.snapshot_id)
    assert box.snapshots() == []
    with pytest.raises(NotFoundError):
        box.restore(taken.snapshot_id)


def test_forks_have_the_files_and_go_their_own_ways(box: Any) -> None:
    box.files.write("forked", "one")
    forks = box.fork(2)
    try:
        assert [fork.files.read("forked") for fork in forks] == [b"one", b"one"]
        assert forks[0].exec("echo two >forked; cat forked").stdout == b"two\n"
        assert [one.files.read("forked") for one in (forks[1], box)] == [b"one", b"one"]
    finally:
        for fork in forks:
            fork.stop()


def test_a_box_pauses_where_its_backend_can(box: Any) -> None:
    command = box.exec("while :; do echo x; sleep 0.02; done", wait=0)
    command.more(0)
    box.pause()
    assert box.paused
    seen = len(command.stdout)
    pause(0.2)
    assert len(command.stdout) == seen
    box.resume()
    command.more(seen)
    assert len(command.stdout) > seen
    assert command.kill() == 0


def test_a_trace_can_be_taken_and_verified(face: Face, kept_server: RunningServer, place: Path) -> None:
    # In one where other tests' commands still end, more would be recorded after the copy: then the ledger knows more.
    box = face.start()
    box.exec("echo recorded")
    assert box.fetch_trace(place) == place.stat().st_size > 0
    state = kept_server.state_dir if face.over_http else os.environ["AGENTBOX_STATE_DIR"]
    done = agentbox("verify", str(place), environment={"AGENTBOX_STATE_DIR": str(state)})
    # It is still being written, and says so.
    assert done.exit_code in (0, 5), done.stdout + done.stderr


def test_another_client_finds_the_sandbox_and_its_commands(face: Face) -> None:
    if not face.over_http:
        with pytest.raises(SandboxError, match="neither kept nor found"):
            face.make(keep=True)
        return
    first = face.start(keep=True)
    first.files.write("left", "here")
    number = first.container_id
    first.exec("echo done")
    first.stop()
    second = face.attach(number)
    assert second.files.read("left") == b"here"
    assert [command.stdout for command in second.find_commands()] == [b"done\n"]
    second.stop()
    last = face.start(sandbox_id=number)
    assert last.exec("cat left").stdout == b"here"
    with httpx.Client(base_url=face.url, headers={"Authorization": f"Bearer {KEY}"}) as client:
        assert client.delete(f"/v1/sandboxes/{number}", timeout=60).status_code == 204
    with pytest.raises(SandboxGoneError):
        last.exec("true")
    with pytest.raises(SandboxGoneError):
        face.attach(number)


def until(true: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for something."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come about"


def pause(seconds: float) -> None:
    """Let time go by that something is to be idle for."""
    time.sleep(seconds)
