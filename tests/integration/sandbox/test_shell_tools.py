# SPDX-License-Identifier: MIT
"""The tools that a model is given: three for a shell, and the session and the editor that models know already."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

import pytest

import agentsbx
from agentbox import Sandbox, SandboxError


def test_a_command_is_answered_with_its_exit_code_and_output(sandbox: Sandbox) -> None:
    assert sandbox.shell_exec("echo __PID__1; echo hello; exit 3") == "exit=3\noutput:\n__PID__1\nhello\n"


def test_files_stay_and_the_directory_does_not(sandbox: Sandbox) -> None:
    sandbox.shell_exec("cd /tmp; export A=1; echo kept > /work/kept-file")
    assert sandbox.shell_exec("pwd; echo ${A-none}; cat kept-file") == "exit=0\noutput:\n/work\nnone\nkept\n"


def test_a_long_command_is_waited_for_in_parts_and_each_line_told_once(sandbox: Sandbox) -> None:
    texts = [sandbox.shell_exec("for i in $(seq 1 20); do echo $i; sleep 0.02; done; exit 7", timeout=0)]
    while texts[-1].startswith("still running"):
        texts.append(sandbox.shell_wait(1))
    assert texts[-1].startswith("exit=7\noutput:\n")
    told = [line for text in texts for line in text.splitlines() if line.isdigit()]
    assert told == [str(number) for number in range(1, 21)]


def test_one_command_runs_at_a_time_and_is_killed_with_what_it_started(sandbox: Sandbox) -> None:
    assert sandbox.shell_exec("sleep 60 & sleep 60", timeout=0).startswith("still running after 0")
    assert re.match(r"ERROR: a command has been running for \d+\.\ds\. Use shell_wait", sandbox.shell_exec("echo no"))
    assert re.fullmatch(r"killed \(exit=143\)\n\[SIGTERM after \d+\.\ds\]\noutput:\n", sandbox.shell_kill())
    assert sandbox.shell_kill() == "ERROR: no command is currently running"
    assert sandbox.shell_wait() == "ERROR: no command is currently running"


def test_who_ignores_term_is_killed_after_the_grace(jailed: Sandbox) -> None:
    said = jailed.shell_exec("trap '' TERM; echo ready; while :; do sleep 1; done", timeout=0)
    while "ready" not in said:
        said = jailed.shell_wait(timeout=1)
        assert said.startswith("still running"), said
    text = jailed.shell("kill", 0.3).render()
    assert re.match(r"killed \(exit=137\)\n\[SIGKILL after \d+\.\ds\]", text)


def test_calls_at_the_same_time_are_answered_each(jailed: Sandbox) -> None:
    answers: list[str] = []

    def ask() -> None:
        answers.append(jailed.shell_exec("sleep 0.3; echo done"))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([one for one in answers if one == "exit=0\noutput:\ndone\n"]) >= 1
    assert all(one.startswith(("exit=0", "ERROR: a command has been running")) for one in answers)


def test_long_output_keeps_both_ends(jailed: Sandbox) -> None:
    text = jailed.shell_exec("printf HEAD; head -c 100000 /dev/zero | tr '\\0' x; printf TAIL")
    assert text.startswith("exit=0\noutput:\nHEADx")
    assert "\n... [70008 characters truncated] ...\n" in text
    assert text.endswith("xTAIL")


def test_a_sandbox_that_is_not_running_says_so() -> None:
    idle = Sandbox(backend="jail")
    for answer in (idle.shell_exec("true"), idle.shell_wait(), idle.shell_kill()):
        assert answer == "ERROR: sandbox is not running"
    idle.stop()
    with pytest.raises(SandboxError, match="not running"):
        idle.exec("true")


def test_dispatch_answers_calls_by_name(jailed: Sandbox) -> None:
    assert jailed.dispatch("shell_exec", {"command": "echo hi", "timeout": 20}) == "exit=0\noutput:\nhi\n"
    assert jailed.dispatch("shell_kill", {}) == "ERROR: no command is currently running"
    assert jailed.dispatch("x", {}) == "ERROR: unknown tool 'x'"
    with pytest.raises(KeyError):
        jailed.dispatch("shell_exec", {})


def test_the_older_name_of_the_package_has_the_same_things() -> None:
    assert agentsbx.Sandbox is Sandbox
    assert agentsbx.SandboxError is SandboxError
    assert (agentsbx.DEFAULT_IMAGE, agentsbx.MAX_OUTPUT_BYTES) == ("python:3.12", 30_000)


@pytest.fixture
def bash(jailed: Sandbox) -> Callable[[str], str]:
    return lambda command: jailed.dispatch("bash", {"command": command})


def test_a_bash_session_keeps_directory_variables_and_functions(jailed: Sandbox, bash: Callable[[str], str]) -> None:
    bash("cd /tmp; export A='one two'; B=(x y); f() { echo \"f:$A:${B[1]}\"; }; set -o noglob")
    assert bash("pwd; f; echo *") == "/tmp\nf:one two:y\n*\n"
    assert bash("exit 4") == "exit code 4"
    assert bash("pwd") == "/tmp\n"
    assert jailed.dispatch("bash", {"restart": True}) == "tool has been restarted."
    assert bash("pwd; echo ${A-none}") == "/work\nnone\n"


def test_calls_of_a_bash_session_wait_for_each_other(jailed: Sandbox, bash: Callable[[str], str]) -> None:
    bash("rm -f count; n=0")
    threads = [threading.Thread(target=bash, args=("n=$((n+1)); echo $n >> count",)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert jailed.files.read_text("count").split() == ["1", "2", "3", "4", "5"]


def test_a_bash_call_without_a_command_is_told_what_is_missing(jailed: Sandbox) -> None:
    assert jailed.dispatch("bash", {}) == "ERROR: give a command, or restart: true"


@pytest.fixture
def edit(jailed: Sandbox) -> Callable[..., str]:
    return lambda command, path, **how: jailed.dispatch(
        "str_replace_based_edit_tool", {"command": command, "path": path, **how}
    )


def test_the_editor_creates_views_replaces_and_inserts(jailed: Sandbox, edit: Callable[..., str]) -> None:
    assert edit("create", "/work/edited/a.txt", file_text="one\r\ntwo\nthree\n").startswith("File created")
    assert edit("view", "edited/a.txt", view_range=[2, -1]) == "     2\ttwo\n     3\tthree"
    assert "exactly one" in edit("str_replace", "edited/a.txt", old_str="two", new_str="2")
    assert "after line 1" in edit("insert", "edited/a.txt", insert_line=1, insert_text="between")
    assert jailed.files.read("edited/a.txt") == b"one\r\nbetween\n2\nthree\n"
    assert edit("view", "/work/edited").splitlines()[1:] == ["/work/edited/", "/work/edited/a.txt"]


@pytest.mark.parametrize(
    ("command", "path", "how", "said"),
    [
        ("view", "/work/none", {}, "File not found"),
        ("view", "/work/e.txt", {"view_range": [5, 9]}, "not within"),
        ("str_replace", "/work/e.txt", {"old_str": "z", "new_str": ""}, "No match found"),
        ("str_replace", "/work/e.txt", {"old_str": "a", "new_str": ""}, "Found 2 matches"),
        ("str_replace", "/work/e.txt", {}, "`old_str` must be given"),
        ("insert", "/work/e.txt", {"insert_line": 9, "insert_text": "x"}, "from 0 to 2"),
        ("create", "/etc/e.txt", {"file_text": ""}, ""),
        ("undo_edit", "/work/e.txt", {}, "unknown command"),
    ],
)
def test_faults_of_the_model_are_answers(
    jailed: Sandbox, edit: Callable[..., str], command: str, path: str, how: dict[str, object], said: str
) -> None:
    jailed.files.write("e.txt", "a\na\n")
    answer = edit(command, path, **how)
    assert answer.startswith("Error: ")
    assert said in answer
