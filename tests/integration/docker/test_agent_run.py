# SPDX-License-Identifier: MIT
"""`agentbox run --isolation docker`: a command in an image, with the project as far as the policy grants it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.docker_engine import TestEngine
from tests.integration.commands import agentbox, assert_is_told_what_to_do
from tests.running_server import clean_environment

AGENT = """
import json, os, sys
def attempt(function):
    try:
        return function()
    except OSError as error:
        return type(error).__name__
print(json.dumps({
    "cwd": os.getcwd(), "python": sys.executable, "contained": os.path.exists("/.dockerenv"), "stdin": sys.stdin.read(),
    "read": attempt(lambda: open("src/given").read()), "hidden": attempt(lambda: open("private/secret").read()),
    "narrow": attempt(lambda: open("src/made", "w")), "write": attempt(lambda: open("out/made", "w").write("made")),
    "exec": attempt(lambda: os.posix_spawn("/bin/true", ["true"], {})), "env": os.environ.get("GIVEN"),
}))
sys.exit(3)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in (("src/given", "read"), ("private/secret", "no"), ("out/kept", "")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "agentbox.policy").write_text("read: ./src\nwrite: ./out\nenv: GIVEN\n")
    return tmp_path


def test_command_runs_in_the_image_and_reaches_what_the_policy_grants(project: Path, docker_engine: TestEngine) -> None:
    environment = {"AGENTBOX_STATE_DIR": str(project / ".state"), "GIVEN": "yes", **docker_engine.environment}
    done = agentbox("run", "--isolation", "docker", "--", "python3", "agent.py", cwd=project, environment=environment)
    assert done.exit_code == 3, done.stderr
    seen = json.loads(done.stdout.splitlines()[0])
    assert (seen["cwd"], seen["python"], seen["contained"]) == (str(project), "/usr/bin/python3", True)
    assert (seen["read"], seen["write"], seen["env"], seen["stdin"]) == ("read", 4, "yes", "")
    refused = {"FileNotFoundError", "PermissionError", "OSError"}
    assert {seen["hidden"], seen["narrow"], seen["exec"]} <= refused
    assert (project / "out" / "made").read_text() == "made"
    assert (project / "out" / "made").stat().st_uid == project.stat().st_uid
    verified = agentbox("verify", cwd=project, environment=environment)
    assert verified.exit_code == 0, verified.stdout + verified.stderr


def test_signal_reaches_the_command(project: Path, docker_engine: TestEngine) -> None:
    code = (
        "import time\nprint('ready', flush=True)\n"
        "try:\n time.sleep(60)\nexcept KeyboardInterrupt:\n print('interrupted', flush=True)"
    )
    environment = {"AGENTBOX_STATE_DIR": str(project / ".state"), **docker_engine.environment}
    running = subprocess.Popen(
        [sys.executable, "-m", "agentbox.cli.main", "run", "-q", "--isolation", "docker", "--", "python3", "-c", code],
        cwd=project,
        env=clean_environment(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    running.send_signal(signal.SIGINT)
    assert running.stdout.read() == "interrupted\n"
    assert running.wait(60) == 0
    assert docker_engine.names(running.pid) == []


def test_rule_for_single_programs_is_refused(project: Path, docker_engine: TestEngine) -> None:
    (project / "agentbox.policy").write_text("exec: git status\n")
    done = agentbox(
        "run", "--isolation", "docker", "--", "python3", "agent.py", cwd=project, environment=docker_engine.environment
    )
    assert_is_told_what_to_do(done, 1, "git status", "--isolation jail")


ASKING = """
import fcntl, os, struct, sys, termios, time
size = struct.unpack("HHHH", fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))[:2]
print("terminals", [os.isatty(fd) for fd in range(3)], open("/dev/tty").isatty(), size)
try:
    print("hello", input())
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(7)
"""


def test_a_command_has_a_terminal_of_the_container(project: Path, docker_engine: TestEngine) -> None:
    if "runc" not in docker_engine.environment.get("AGENTBOX_DOCKER_RUNTIME", "runc"):
        pytest.skip("gVisor's terminals cannot be handed over")
    (project / "agent.py").write_text(ASKING)
    environment = {"AGENTBOX_STATE_DIR": str(project / ".state"), "TERM": "xterm", **docker_engine.environment}
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(project)
        command = [sys.executable, "-m", "agentbox.cli.main", "run", "-q", "--isolation", "docker", "--"]
        os.execve(sys.executable, [*command, "python3", "agent.py"], clean_environment(environment))
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        assert "terminals [True, True, True] True (30, 100)" in _seen(terminal, "(30, 100)")
        os.write(terminal, b"bob\r")
        _seen(terminal, "hello bob")
        os.write(terminal, b"\x03")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        pid = 0
    finally:
        os.close(terminal)
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _seen(terminal: int, text: str) -> str:
    """What comes up to a text."""
    seen = b""
    while text.encode() not in seen:
        readable, _, _ = select.select([terminal], [], [], 30)
        assert readable, seen
        seen += os.read(terminal, 65536)
    return seen.decode()
