# SPDX-License-Identifier: MIT
"""The examples of the older policy runtime's page that need neither a network nor its functions for agents: the same
commands, the same policy text, the same promises."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.policy_run import AGENTBOX, Project, has_program, new_project

pytestmark = pytest.mark.linux

POLICY = """\
read:  ./data              # file reads under this root
write: ./out               # writes (implies read) under this root
net:   api.github.com      # DNS + connect to this host
net:   *.githubusercontent.com
net:   127.0.0.1:8080      # optional port pin
net:   unix:/tmp/app.sock  # unix sockets
exec:  git status          # argv prefix match
exec:  echo                # bare program name: any args
env:   HOME                # env vars passed into the sandbox
env:   AWS_*               # globs work everywhere
"""
WITHOUT_NETWORK = "".join(line for line in POLICY.splitlines(keepends=True) if not line.startswith("net:"))
AGENT = """\
from pathlib import Path
text = Path("data/notes.txt").read_text()
Path("out").mkdir(exist_ok=True)
Path("out/summary.txt").write_text(text.upper())
print("wrote out/summary.txt")
try:
    open("/etc/passwd").read()
    print("NOT BLOCKED")
except PermissionError as error:
    print("blocked as expected:", error)
"""
NODE_AGENT = """\
const fs = require('fs');
fs.writeFileSync('out/report.md', fs.readFileSync('data/notes.txt', 'utf8').toUpperCase());
console.log(String(require('child_process').execFileSync('echo', ['from echo'])).trim());
try { fs.readFileSync('/etc/passwd'); console.log('NOT BLOCKED'); } catch (error) { console.log(error.message); }
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = new_project(tmp_path)
    made.file("data/notes.txt", "hello notes\n")
    made.file("demo_agent.py", AGENT)
    return made


def _agentbox(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*AGENTBOX, *words], cwd=project.directory, env=project.environ(), capture_output=True, text=True, check=False
    )


def test_the_quickstart_goes_from_init_to_verify(project: Project) -> None:
    assert _agentbox(project, "init").stdout == "wrote agentbox.policy\n"
    starter = (project.directory / "agentbox.policy").read_text()
    project.file("src/notes.txt", "hello notes\n")
    project.file("demo_agent.py", AGENT.replace("data/", "src/"))
    done = _agentbox(project, "run", "-p", "agentbox.policy", "--", "/usr/bin/python3", "demo_agent.py")
    wrote, blocked, recorded = done.stdout.splitlines()
    assert wrote == "wrote out/summary.txt"
    assert blocked == "blocked as expected: agentbox: policy denies read /etc/passwd"
    assert recorded.startswith("agentbox: recorded ")
    assert " 1 denials -> " in recorded
    assert (project.directory / "out/summary.txt").read_text() == "HELLO NOTES\n"
    shown = _agentbox(project, "show").stdout
    for part in ("run.start", "src/notes.txt", "out/summary.txt", "deny     read            /etc/passwd", "run.end"):
        assert part in shown, (part, starter)
    assert _agentbox(project, "verify").stdout.startswith("agentbox: trace ok — ")


def test_the_page_s_policy_is_accepted_and_means_what_the_page_says(project: Project) -> None:
    (project.directory / "agentbox.policy").write_text(POLICY)
    checked = _agentbox(project, "policy", "check", "agentbox.policy")
    assert checked.returncode == 0, checked
    answers = {
        ("read", "data/x"): True,
        ("read", "out/x"): True,
        ("write", "out/x"): True,
        ("write", "data/x"): False,
        ("read", "/etc/passwd"): False,
        ("net", "api.github.com:443"): True,
        ("net", "raw.githubusercontent.com:443"): True,
        ("net", "example.com:443"): False,
        ("net", "127.0.0.1:8080"): True,
        ("net", "127.0.0.1:8081"): False,
        ("net", "unix:/tmp/app.sock"): True,
        ("exec", "echo", "anything"): True,
        ("exec", "cat"): False,
        ("env", "HOME"): True,
        ("env", "AWS_REGION"): True,
        ("env", "GITHUB_TOKEN"): False,
    }
    given = {
        question: _agentbox(project, "policy", "explain", "agentbox.policy", "--", *question).returncode == 0
        for question in answers
    }
    assert given == answers


def test_rules_that_share_a_line_are_the_same_policy(project: Project) -> None:
    (project.directory / "agentbox.policy").write_text("allow: read ./data, write: ./out\n")
    done = project.run("/usr/bin/python3", "demo_agent.py")
    assert "blocked as expected" in done.text
    assert (project.directory / "out/summary.txt").exists()


def test_each_promise_about_enforcement_holds(project: Project) -> None:
    (project.directory / "agentbox.policy").write_text(WITHOUT_NETWORK)
    project.file("precious.txt", "precious\n")
    code = (
        "import json, os, socket, subprocess\n"
        "held = {}\n"
        "def blocked(name, act):\n"
        "    try: act(); held[name] = False\n"
        "    except OSError: held[name] = True\n"
        "blocked('read', lambda: open('precious.txt'))\n"
        "blocked('write', lambda: open('data/new', 'w'))\n"
        "blocked('resolve', lambda: socket.getaddrinfo('example.com', 80))\n"
        "blocked('connect', lambda: socket.create_connection(('192.0.2.1', 80), 1))\n"
        "blocked('spawn', lambda: subprocess.run(['ls']))\n"
        "blocked('git push', lambda: subprocess.run(['git', 'push'], check=True))\n"
        "blocked('exec', lambda: os.execv('/bin/ls', ['ls']))\n"
        "blocked('remove', lambda: os.remove('precious.txt'))\n"
        "blocked('rename', lambda: os.rename('precious.txt', 'out/p'))\n"
        "print(json.dumps(held)); print(subprocess.check_output(['echo', 'any', 'args']).decode())\n"
        "print(sorted(name for name in os.environ if name.startswith(('AWS', 'GITHUB'))))"
    )
    done = project.run("/usr/bin/python3", "-c", code, environment={"AWS_REGION": "x", "GITHUB_TOKEN": "CANARY"})
    held, *more = done.text.splitlines()
    assert set(json.loads(held).values()) == {True}, held
    assert more[:1] == ["any args"]
    assert "'AWS_REGION'" in done.text
    assert "GITHUB_TOKEN" not in done.text
    assert (project.directory / "precious.txt").read_text() == "precious\n"
    assert not [one for one in done.records if "CANARY" in json.dumps(one)]
    assert project.verdict()[0] == 0


def test_edit_delete_or_reorder_one_line_and_verify_catches_it(project: Project) -> None:
    (project.directory / "agentbox.policy").write_text(WITHOUT_NETWORK)
    project.run("/usr/bin/python3", "demo_agent.py")
    lines = (project.directory / "trace.jsonl").read_bytes().splitlines(keepends=True)
    edited = [line.replace(b"notes.txt", b"other.txt") for line in lines]
    assert edited != lines
    for changed in (edited, lines[:2] + lines[3:], [*lines[:2], lines[3], lines[2], *lines[4:]]):
        (project.directory / "changed.jsonl").write_bytes(b"".join(changed))
        code, said = project.verdict("changed.jsonl")
        assert code == 1
        assert "TAMPERED" in said


def test_a_node_agent_runs_under_the_same_policy_and_trace(project: Project) -> None:
    if not has_program("node"):
        pytest.skip("there is no node")
    (project.directory / "agentbox.policy").write_text(WITHOUT_NETWORK)
    (project.directory / "out").mkdir()
    project.file("agent.js", NODE_AGENT)
    done = project.run("node", "agent.js")
    assert done.text.splitlines()[:2] == ["from echo", "agentbox: policy denies read /etc/passwd"], done
    assert (project.directory / "out/report.md").read_text() == "HELLO NOTES\n"
    assert done.denials("read", "guest") == ["/etc/passwd"]
    assert project.verdict()[0] == 0
