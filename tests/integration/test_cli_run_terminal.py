# SPDX-License-Identifier: MIT
"""`agentbox run` on a terminal: programs in it must not notice that the terminal is not the caller's own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adversarial.host_state import until
from tests.policy_run import AGENTBOX, Project, new_project

pytestmark = pytest.mark.linux
_PATIENCE_SECONDS = 30.0


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = new_project(tmp_path)
    made.policy("write: ./out", "exec: stty, sleep, ls, tty, python3, cat, bash")
    return made


class Typist:
    """Somebody at a terminal whose shell started a command."""

    def __init__(self, project: Project, command: str) -> None:
        self.seen = b""
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(project.directory)
            os.execvpe("sh", ["sh", "-c", command], project.environ({"TERM": "xterm"}))
        self.resize(30, 100)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def expect(self, text: str) -> str:
        """Everything on the screen up to `text`, which comes soon."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while text.encode() not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} did not come: {self.seen!r}"
            if select.select([self.terminal], [], [], 0.5)[0]:
                try:
                    self.seen += os.read(self.terminal, 65536)
                except OSError:
                    assert text.encode() in self.seen, self.seen
        found, _, self.seen = self.seen.partition(text.encode())
        return found.decode(errors="replace")

    def exit_code(self) -> int:
        """Of the shell's command, when it has ended; reads what it still prints."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if select.select([self.terminal], [], [], 0.05)[0]:
                    self.seen += os.read(self.terminal, 65536)
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"it did not end: {self.seen!r}")

    def settings(self) -> list[object]:
        return termios.tcgetattr(self.terminal)


@contextlib.contextmanager
def typist(project: Project, *command: str, around: str = "{}") -> Iterator[Typist]:
    words = " ".join([*AGENTBOX, "run", "-q", "--", *command])
    somebody = Typist(project, around.format(words))
    try:
        yield somebody
    finally:
        if somebody.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(somebody.pid, signal.SIGKILL)
            os.waitpid(somebody.pid, 0)
        os.close(somebody.terminal)


def test_python_s_prompt_is_used_like_at_home(project: Project) -> None:
    with typist(project, "/usr/bin/python3", "-q") as somebody:
        somebody.expect(">>> ")
        somebody.type("print(6 * 7)\r")
        somebody.expect("42\r\n")
        # A key that comes while readline changes the terminal is lost at home too, so the program says when it waits.
        somebody.type("print('wai' + 'ting') or __import__('time').sleep(600)\r")
        somebody.expect("waiting")
        somebody.type("\x03")
        somebody.expect("KeyboardInterrupt")
        somebody.type("exit(5)\r")
        assert somebody.exit_code() == 5


def test_an_interactive_shell_has_its_own_process_groups(project: Project) -> None:
    with typist(project, "bash", "--norc", "--noediting", "-i") as somebody:
        somebody.type("PS1=r'eady> '\r")
        somebody.expect("ready> ")
        somebody.type("cat\r")
        somebody.type("hello\r")
        somebody.expect("hello\r\nhello")
        somebody.type("\x1a")
        somebody.expect("Stopped")
        somebody.type("kill %1; fg\r")
        somebody.expect("ready> ")
        somebody.type("exit 6\r")
        assert somebody.exit_code() == 6


def test_the_size_of_the_window_follows(project: Project) -> None:
    with typist(project, "sh", "-c", "'stty size; read line; stty size'") as somebody:
        somebody.expect("30 100")
        somebody.resize(44, 133)
        somebody.type("\r")
        somebody.expect("44 133")
        assert somebody.exit_code() == 0


def test_full_screen_programs_get_raw_keys_and_leave_the_terminal_as_it_was(project: Project) -> None:
    code = (
        "import tty, sys, os; tty.setraw(0); print('ready', flush=True); print(os.read(0, 9)); os.kill(os.getpid(), 9)"
    )
    with typist(project, "/usr/bin/python3", "-c", f'"{code}"', around="echo up; {}; echo code=$?; read x") as somebody:
        somebody.expect("up")
        before = somebody.settings()
        until(lambda: somebody.settings() != before, "the terminal did not become raw")
        somebody.expect("ready")
        somebody.type("\x1b[A")
        somebody.expect("code=137")
        assert somebody.settings() == before


def test_the_terminal_is_restored_when_the_command_is_killed_from_outside(project: Project) -> None:
    with typist(project, "cat", around="echo up; {}; echo code=$?; read x") as somebody:
        somebody.expect("up")
        before = somebody.settings()
        until(lambda: somebody.settings() != before, "the terminal did not become raw")
        somebody.type("hello\r")
        somebody.expect("hello\r\nhello")
        somebody.type("\x1c")
        somebody.expect("code=131")
        assert somebody.settings() == before


def test_the_key_that_suspends_stops_runner_and_command_and_fg_continues_them(project: Project) -> None:
    around = "set -m; {}; echo stopped=$?; fg; echo code=$?"
    with typist(project, "sh", "-c", "'echo up; exec cat'", around=around) as somebody:
        somebody.expect("up")
        somebody.type("one\r")
        somebody.expect("one\r\none")
        raw = somebody.settings()
        somebody.type("\x1a")
        somebody.expect("stopped=")
        until(lambda: somebody.settings() == raw, "the terminal is not raw again")
        somebody.type("two\r")
        somebody.expect("two\r\ntwo")
        somebody.type("\x04")
        somebody.expect("code=0")


def test_a_command_that_closes_its_terminal_before_it_ends_has_its_own_exit_code(project: Project) -> None:
    code = "import os, time; os.closerange(0, 3); time.sleep(0.5); os._exit(7)"
    with typist(project, "/usr/bin/python3", "-c", f'"{code}"') as somebody:
        assert somebody.exit_code() == 7


def test_what_is_redirected_is_not_the_terminal(project: Project) -> None:
    script = "'tty; echo to-stderr >&2; cat'"
    with typist(project, "sh", "-c", script, around="echo piped | {} 2>errors; cat errors | tr a-z A-Z") as somebody:
        shown = somebody.expect("TO-STDERR")
        assert "piped" in shown
        assert "not a tty" in shown
        assert somebody.exit_code() == 0


def test_the_guest_s_terminal_is_one_of_the_box(project: Project) -> None:
    with typist(project, "sh", "-c", "'tty; ls -l /proc/self/fd; ls /dev/pts'") as somebody:
        own = os.ttyname(somebody.terminal) if os.isatty(somebody.terminal) else ""
        assert somebody.exit_code() == 0
        shown = somebody.seen.decode()
        assert "/dev/pts/0" in shown
        assert own == "/dev/pts/0" or own not in shown
