# SPDX-License-Identifier: MIT
"""Commands in a sandbox: any number at once, each with its own input, output and end."""

from __future__ import annotations

import os
import time

import pytest

from agentbox import Sandbox
from agentbox.sandbox.loops import call


def test_a_command_has_its_output_and_its_exit_code(sandbox: Sandbox) -> None:
    done = sandbox.exec("echo out; echo err >&2; exit 3")
    assert (done.stdout, done.exit_code, done.running) == (b"out\nerr\n", 3, False)


def test_streams_can_be_kept_apart(sandbox: Sandbox) -> None:
    done = sandbox.exec("echo out; echo err >&2", merged=False)
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")


@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 300", 44), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("no-such-program", 127), ("if then", 2)],
)
def test_ends_are_told_truthfully(jailed: Sandbox, command: str, code: int) -> None:
    assert jailed.exec(command).exit_code == code


def test_a_program_that_is_not_there_is_an_error_and_not_a_result(sandbox: Sandbox) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        sandbox.exec(["no-such-program"])


def test_commands_run_at_the_same_time_and_keep_their_output_apart(sandbox: Sandbox) -> None:
    gate = "until [ -e gate ]; do sleep 0.05; done"
    waiting = [sandbox.exec(f"echo begun; {gate}; echo {number}", wait=0) for number in range(8)]
    assert all(one.running for one in waiting)
    sandbox.exec("touch gate")
    assert all(one.wait(30) for one in waiting)
    assert [one.stdout for one in waiting] == [b"begun\n%d\n" % number for number in range(8)]
    sandbox.files.remove("gate")


def test_directory_and_variables_are_the_commands_own(sandbox: Sandbox) -> None:
    done = sandbox.exec("pwd; echo $NAME $HOME", cwd="/tmp", env={"NAME": "value"})
    assert done.stdout == b"/tmp\nvalue /root\n"
    assert sandbox.exec("pwd; echo ${NAME-none}").stdout == b"/work\nnone\n"


def test_home_and_the_working_directory_are_one(sandbox: Sandbox) -> None:
    sandbox.exec("echo content > /root/one-file")
    assert sandbox.exec("cat /work/one-file; cd; cat one-file").stdout == b"content\ncontent\n"


def test_input_is_read_to_its_end(sandbox: Sandbox) -> None:
    assert sandbox.exec(["wc", "-c"], stdin=b"x" * 700_000).stdout.strip() == b"700000"
    assert sandbox.exec(["cat"]).stdout == b""


def test_input_can_follow_step_by_step(sandbox: Sandbox) -> None:
    command = sandbox.exec("while read line; do echo got $line; done; echo end", stdin=True, wait=0)
    command.send("one\n")
    command.send(b"two\n")
    command.close_stdin()
    assert command.wait(30)
    assert command.stdout == b"got one\ngot two\nend\n"


def test_a_timeout_ends_the_command_and_waiting_does_not(sandbox: Sandbox) -> None:
    ended = sandbox.exec("echo begun; sleep 60", timeout=0.5)
    assert (ended.exit_code, ended.timed_out, ended.stdout) == (143, True, b"begun\n")
    waited = sandbox.exec("sleep 60", wait=0.1)
    assert waited.running
    assert waited.kill() == 0
    assert not waited.running


def test_a_call_ends_with_its_process_and_later_output_is_kept(sandbox: Sandbox) -> None:
    done = sandbox.exec("(until [ -e gate2 ]; do sleep 0.05; done; echo late) & echo early", wait=25)
    assert (done.exit_code, done.stdout) == (0, b"early\n")
    sandbox.exec("touch gate2")
    deadline = time.monotonic() + 20
    while done.stdout != b"early\nlate\n" and time.monotonic() < deadline:
        sandbox.exec(["true"])
    assert done.stdout == b"early\nlate\n"


def test_killing_ends_every_descendant(sandbox: Sandbox) -> None:
    command = sandbox.exec(
        "trap '' TERM; (setsid sleep 61 &); setsid sh -c 'sleep 62 & sleep 63' & echo ready; sleep 64",
        stdin=True,
        wait=0,
    )
    while not command.stdout:
        command.wait(0.05)
    assert command.kill(0.2) == 0
    left = sandbox.exec("for one in /proc/[0-9]*; do tr '\\0' ' ' < $one/cmdline; echo; done 2>/dev/null").stdout
    assert not [line for line in left.splitlines() if line.startswith(b"sleep 6")]


def test_a_terminal_is_one_and_can_be_resized(sandbox: Sandbox) -> None:
    command = sandbox.exec("test -t 0 && stty size; read x; stty size", terminal=(30, 90), wait=0)
    while b"30 90" not in command.stdout:
        assert not command.wait(0.05)
    command.resize(10, 20)
    command.send("go\n")
    assert command.wait(30)
    assert b"10 20" in command.stdout
    # Also where a kernel does not tell that nobody has the terminal open any more.
    assert command.asynchronous is not None
    assert call(command.asynchronous.wait_closed(30))


def test_what_one_command_left_in_the_background_outlives_the_end_of_another(sandbox: Sandbox) -> None:
    left = sandbox.exec("setsid sleep 642 & echo $!", wait=30)
    other = sandbox.exec(["sleep", "643"], wait=0)
    assert other.kill(0.0) == 0
    assert sandbox.exec(f"kill -0 {left.stdout.decode()}").exit_code == 0
    assert left.kill(0.0) == 0


def test_a_flood_does_not_grow_the_host_and_its_ends_are_kept(jailed: Sandbox) -> None:
    before = _resident_bytes()
    flood = jailed.exec("echo first; yes | head -c 150000000; echo last", timeout=120)
    assert flood.exit_code == 0
    assert _resident_bytes() - before < 48 << 20
    assert flood.read(0, 6) == (0, b"first\n")
    total = 150_000_011
    assert flood.read(total - 5, 100) == (total - 5, b"last\n")
    at, _ = flood.read(total // 2, 10)
    assert at > total // 2
    assert "characters truncated" in flood.text()


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_limit_of_memory_ends_the_program_and_not_the_sandbox(jailed: Sandbox) -> None:
    assert jailed.exec("python3 -c 'print(len(bytearray(2**30)))'", timeout=60).exit_code == 137
    assert jailed.exec("echo well").stdout == b"well\n"
