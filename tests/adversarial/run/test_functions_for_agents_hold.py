# SPDX-License-Identifier: MIT
"""`agentbox.client` opens nothing that the policy does not, and its trace holds no secret of a request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.guest.web_server import web_server
from tests.policy_run import new_project

pytestmark = pytest.mark.linux
AGENT = """\
import os, socket, subprocess, sys, threading
import agentbox
from agentbox import client as box
SECRET, ALLOWED, DENIED = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
class Path:
    asked = 0
    def __fspath__(self):
        self.asked += 1
        return "data/notes.txt" if self.asked % 2 else SECRET
class Text(str):
    def __str__(self): return "data/notes.txt"
    def encode(self, *_): return b"data/notes.txt"
    def __fspath__(self): return "data/notes.txt"
def widened():
    agentbox.Policy.allows = lambda *_: True
    for name in ("session", "policy", "guard"):
        try: getattr(box, name)().policy.reads.append("/")
        except AttributeError: pass
    return box.read_text(SECRET)
def forged():
    reply = []
    sys.audit("agentbox", "client", ("end", "fs.read_text", {"path": "forged"}, {"result": "forged"}), reply)
    sys.audit("agentbox", "client", ("enter",), reply)
    try: return open(SECRET).read()
    finally: sys.audit("agentbox", "client", ("leave",), reply)
def raced():
    stop = threading.Event()
    def swap():
        while not stop.is_set():
            for target in ("../data/notes.txt", SECRET):
                try: os.unlink("out/n")
                except OSError: pass
                try: os.symlink(target, "out/n")
                except OSError: pass
    thread = threading.Thread(target=swap); thread.start()
    found = []
    for _ in range(60):
        try: found.append(box.read_text("out/n"))
        except Exception: pass
    stop.set(); thread.join()
    return sorted(set(found))
page = f"http://ada:PASSWORD@127.0.0.1:{ALLOWED}"
attempts = {
    "two faces": lambda: [box.read_text(path) for path in [Path()] * 2],
    "a lying string": lambda: box.read_text(Text(SECRET)),
    "a lying word": lambda: box.run([Text("/bin/cat"), SECRET]),
    "a wider policy": widened,
    "a forged effect": forged,
    "a race": raced,
    "upwards": lambda: box.read_text("data/../../secret.txt"),
    "through proc": lambda: box.read_text("/proc/self/root" + SECRET),
    "a redirect": lambda: box.get(f"http://127.0.0.1:{ALLOWED}/see/http://127.0.0.1:{DENIED}/x"),
    "a redirect to a file": lambda: box.get(f"http://127.0.0.1:{ALLOWED}/see/file://{SECRET}"),
    "a file": lambda: box.get("file://" + SECRET),
    "another port": lambda: box.get(f"http://127.0.0.1:{DENIED}/x"),
    "another name for it": lambda: box.get(f"http://localhost:{DENIED}/x"),
    "a number for it": lambda: box.get(f"http://2130706433:{DENIED}/x"),
    "a header of two lines": lambda: box.get(page + "/x", headers={"X": "a\\r\\nHost: evil"}),
    "an address of two lines": lambda: box.get(page + "/x HTTP/1.1\\r\\nX: y"),
    "outside": lambda: box.write_text(os.path.dirname(SECRET) + "/new", "x"),
    "into the project": lambda: box.write_text("data/new", "x"),
    "through a shell": lambda: box.run(["sh", "-c", "cat " + SECRET]),
    "secrets": lambda: box.get(page + "/status/404?token=QUERY", headers={"Authorization": "Bearer TOKEN"}),
}
for name, attempt in attempts.items():
    try: print(name, "->", attempt())
    except BaseException as error: print(name, "->", type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, list[str], Path]:
    """What the agent printed, its trace, the paths that the denied port was asked for, and where the secret lies."""
    directory = tmp_path_factory.mktemp("functions")
    project = new_project(directory)
    secret = directory / "secret.txt"
    secret.write_text("SECRET-9357")
    project.file("data/notes.txt", "notes")
    project.file("agent.py", AGENT)
    with web_server() as web:
        project.policy("read: ./data", "write: ./out", "exec: echo", f"net: 127.0.0.1:{web.port}")
        done = project.run("/usr/bin/python3", "agent.py", str(secret), str(web.port), str(web.other_port))
        asked = web.paths(web.other_port)
    assert done.exit_code == 0, done
    return done.text, json.dumps(done.records), asked, secret


def test_nothing_denied_is_reached(ran: tuple[str, str, list[str], Path]) -> None:
    printed, _, asked, secret = ran
    assert "SECRET-9357" not in printed
    assert asked == []
    assert sorted(path.name for path in secret.parent.iterdir()) == ["project", "secret.txt", "state"]
    told = dict(line.split(" -> ", 1) for line in printed.splitlines() if " -> " in line)
    for name in ("a redirect", "a redirect to a file", "a file", "another port", "another name for it"):
        assert told[name].startswith("PolicyViolation policy denies "), (name, told[name])
    assert told["secrets"].startswith("HTTPError HTTP Error 404")


def test_no_secret_of_a_request_is_in_the_trace(ran: tuple[str, str, list[str], Path]) -> None:
    _, trace, _, _ = ran
    assert "net.get" in trace
    for secret in ("PASSWORD", "TOKEN", "QUERY", "SECRET-9357"):
        assert secret not in trace
