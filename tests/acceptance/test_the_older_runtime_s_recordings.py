# SPDX-License-Identifier: MIT
"""The examples of the older policy runtime's page that use its functions for agents: each runs, is recorded, verifies,
replays, and is undone. A server on this host stands in for the one that the page asks."""

from __future__ import annotations

import http.server
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.policy_run import Project, has_program, new_project

pytestmark = pytest.mark.linux
PYTHON = "/usr/bin/python3"
DEMO = """\
import agentbox.client as box

text = box.read_text("data/notes.txt")
box.write_text("out/summary.txt", text.upper())
print("wrote out/summary.txt at", box.now())
try:
    open("/etc/passwd").read()
    print("NOT BLOCKED")
except PermissionError as error:
    print("blocked as expected:", error)
"""
SDK = """\
import agentbox.client as box

text = box.read_text("data/notes.txt")
resp = box.get("http://127.0.0.1:PORT/repos/x/y")   # {"status", "body", "sha256"}
out  = box.run(["git", "status"])                    # {"code", "stdout", "stderr"}
t    = box.now()      # frozen on replay
r    = box.random()   # frozen on replay
box.write_text("out/report.md", text.upper())
print(resp, out, t, r)
"""
CHECKPOINT = """\
import agentbox.client as box

notes = box.read_text("data/notes.txt")
box.write_text("data/notes.txt", notes + "rewritten\\n")
box.write_text("out/report.md", notes.upper())
print("agent done: rewrote data/notes.txt, wrote out/report.md")
"""


@contextmanager
def _web() -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = b'{"full_name": "x/y"}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = new_project(tmp_path)
    made.file("data/notes.txt", "hello notes\n")
    (made.directory / "out").mkdir()
    return made


def _agentbox(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*project.command, *words],
        cwd=project.directory,
        env=project.environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _verifies_and_replays(project: Project, *command: str) -> str:
    """What the replay printed, without its own last line."""
    assert _agentbox(project, "verify").stdout.startswith("agentbox: trace ok — ")
    replayed = _agentbox(project, "replay", "-p", "agentbox.policy", "--", *command)
    assert replayed.returncode == 0, replayed
    *printed, last = replayed.stdout.splitlines()
    assert last.startswith("agentbox: replay ok — "), replayed
    assert last.endswith(" recorded steps matched")
    return "\n".join(printed)


def test_the_quickstart_replays_with_the_same_clock(project: Project) -> None:
    project.policy("read: ./data", "write: ./out")
    project.file("demo_agent.py", DEMO)
    done = _agentbox(project, "run", "-p", "agentbox.policy", "--", PYTHON, "demo_agent.py")
    wrote, blocked, recorded = done.stdout.splitlines()
    assert wrote.startswith("wrote out/summary.txt at ")
    assert blocked == "blocked as expected: agentbox: policy denies read /etc/passwd"
    assert recorded.startswith("agentbox: recorded 3 effects, ")
    assert _verifies_and_replays(project, PYTHON, "demo_agent.py") == f"{wrote}\n{blocked}"
    project.file("data/notes.txt", "other notes\n")
    # What an effect read is served, never compared with what is there now.
    assert _verifies_and_replays(project, PYTHON, "demo_agent.py") == f"{wrote}\n{blocked}"


def test_every_function_for_agents_replays_without_its_server(project: Project) -> None:
    if not has_program("git"):
        pytest.skip("there is no git")
    with _web() as port:
        project.policy("read: ./data", "write: ./out", "exec: git status", f"net: 127.0.0.1:{port}")
        project.file("agent.py", SDK.replace("PORT", str(port)))
        done = project.run(PYTHON, "agent.py")
    assert done.exit_code == 0, done
    printed = done.text.splitlines()[0]
    assert printed.startswith("{'status': 200, 'body': '{\"full_name\": \"x/y\"}', 'sha256': '")
    assert "{'code': " in printed
    effects = [record["op"] for record in done.records if record["kind"] == "effect"]
    assert effects == ["fs.read_text", "net.get", "proc.run", "clock.now", "rand.random", "fs.write_text"]
    assert _verifies_and_replays(project, PYTHON, "agent.py") == printed


def test_what_a_checked_agent_did_replays_and_is_undone(project: Project) -> None:
    project.policy("write: ./data", "write: ./out")
    project.file("checkpoint_agent.py", CHECKPOINT)
    done = project.run(PYTHON, "checkpoint_agent.py", options=("--checkpoint",))
    assert done.exit_code == 0, done
    assert "agent done: rewrote data/notes.txt, wrote out/report.md" in done.text
    assert [record["op"] for record in done.records if record["op"].startswith("hook.")] == ["hook.checkpoint"]
    assert "agent done" in _verifies_and_replays(project, PYTHON, "checkpoint_agent.py")
    changes = _agentbox(project, "changes").stdout
    assert "A out/report.md" in changes
    assert "M data/notes.txt" in changes
    assert _agentbox(project, "undo").returncode == 0
    assert (project.directory / "data/notes.txt").read_text() == "hello notes\n"
    assert not (project.directory / "out/report.md").exists()
