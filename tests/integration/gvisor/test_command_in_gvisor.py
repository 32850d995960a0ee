# SPDX-License-Identifier: MIT
"""`agentbox run --isolation gvisor`: an agent's command at the host's own paths."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.running_server import clean_environment

AGENT = """
import ctypes, os, sys
print(os.uname().release, os.getcwd() == sys.argv[1], open("src/in").read(), sys.stdin.read())
open("out/made", "w").write("result")
print(ctypes.CDLL(None).system(b"echo started") >> 8, ctypes.CDLL(None).open(b"secret", 0))
open("agent.py", "a")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "in").write_text("input")
    (tmp_path / "secret").write_text("s")
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "agentbox.policy").write_text("allow: read ./src\nallow: write ./out\n")
    return tmp_path


def agentbox(project: Path, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agentbox.cli.main", *words],
        cwd=project,
        env=clean_environment({"AGENTBOX_STATE_DIR": str(project / ".state")}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **more,
    )


def test_command_sees_what_its_policy_grants_and_its_trace_verifies(project: Path) -> None:
    words = ("run", "--isolation", "gvisor", "--witness", "all", "--json", "--", "/usr/bin/python3", "agent.py")
    done = agentbox(project, *words, str(project.resolve()), input="stdin")
    assert done.stdout == "4.4.0 True input stdin\n127 -1\n"
    summary = json.loads(done.stderr.splitlines()[-1])
    assert (done.returncode, summary["exit_code"]) == (1, 1)
    assert "PermissionError" in done.stderr
    assert (project / "out" / "made").read_text() == "result"
    assert (project / "out" / "made").stat().st_uid == os.geteuid()
    held = summary["enforcement"]
    assert {held[name] for name in ("filesystem", "network", "exec", "memory", "pids", "cpu")} == {"kernel"}
    found = [json.loads(line) for line in Path(summary["trace"]).read_text().splitlines()]
    told = {(one["op"], one["origin"]) for one in found}
    assert {("proc.exec", "kernel"), ("fs.open_read", "kernel"), ("fs.open_write", "guest")} <= told
    denials = [one for one in found if (one["kind"], one["origin"]) == ("deny", "kernel")]
    assert ("read", str(project.resolve() / "secret")) in {(one["op"], one["args"]["target"]) for one in denials}
    assert agentbox(project, "verify", summary["trace"]).returncode == 0


def test_rule_for_a_program_is_refused_before_anything_runs(project: Path) -> None:
    (project / "agentbox.policy").write_text("exec: git status\n")
    done = agentbox(project, "run", "--isolation", "gvisor", "--", "/usr/bin/python3", "-c", "print('ran')")
    assert done.returncode != 0
    assert "cannot be held by backend gvisor" in done.stderr
    assert "ran" not in done.stdout


def test_keys_of_a_terminal_reach_the_command(project: Path) -> None:
    script = (
        "import os, sys, time\n"
        "print('size', *os.get_terminal_size(0), flush=True)\n"
        "try: time.sleep(60)\n"
        "except KeyboardInterrupt: print('interrupted', flush=True)\n"
    )
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "agentbox.cli.main", "run", "--isolation", "gvisor", "-q", "--"]
    with subprocess.Popen(
        [*command, "/usr/bin/python3", "-c", script],
        cwd=project,
        env=clean_environment({"AGENTBOX_STATE_DIR": str(project / ".state")}),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    ) as process:
        os.close(slave)
        seen = b""
        while b"size" not in seen:
            seen += os.read(master, 4096)
        os.write(master, b"\x03")
        while b"interrupted" not in seen:
            seen += os.read(master, 4096)
        assert process.wait(60) == 0
    os.close(master)
