# SPDX-License-Identifier: MIT
"""Boxes beside each other: nothing of one's way out is of use to another; what a killed process leaves is nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.adversarial.egress.far_services import PORT_HOLD, PORT_KEEP
from tests.adversarial.egress.ground import NAME_SERVER, PRELUDE, PYTHON, Ground, process_that_listens, serving
from tests.adversarial.host_state import descendants, until
from tests.running_server import clean_environment

pytestmark = pytest.mark.linux

KNOWN = f"HOLD, KEEP = {PORT_HOLD}, {PORT_KEEP}\n"
OWNER = """
where = socket.getaddrinfo("web.example", KEEP, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
own = socket.socket(); own.bind(("0.0.0.0", 7777)); own.listen()
hidden = socket.socket(socket.AF_UNIX); hidden.bind("\\0of-one-box"); hidden.listen()
end = socket.create_connection(("web.example", HOLD)); end.sendall(b"x\\n")
sys.stdout.write(where); sys.stdout.flush()
time.sleep(8)
for server in (own, hidden):
    server.setblocking(False)
    try:
        server.accept(); os.write(1, b" VISITED")
    except BlockingIOError:
        pass
"""
NEIGHBOUR = """
lists = ""
for name in ("tcp", "tcp6", "unix", "udp", "nf_conntrack", "netstat", "snmp", "dev", "sockstat"):
    try: lists += open(f"/proc/net/{name}").read()
    except OSError: pass
seen = {}
for last in range(256, 300):
    address = f"198.18.{last // 256}.{last % 256}"
    try:
        said = talk(address, KEEP, b"GET / HTTP/1.1\\r\\nHost: web.example\\r\\n\\r\\n", 1)
        if " 204 " in said: seen[address] = said
    except OSError: pass
for address in ("127.0.0.1", "198.18.0.1", "198.18.0.2", "::1"):
    try:
        socket.create_connection((address, 7777), 1).recv(1); seen[address] = "own server"
    except OSError: pass
try:
    socket.socket(socket.AF_UNIX).connect("\\0of-one-box"); seen["abstract"] = 1
except OSError: pass
told["seen"], told["lists"] = seen, lists
reverse = []
for last in range(0, 8):
    try: reverse.append(socket.gethostbyaddr(f"198.18.1.{last}")[0])
    except OSError: pass
told["reverse"] = reverse
"""


@pytest.mark.parametrize("standing", ["root", "user"])
def test_a_box_can_neither_use_nor_see_what_another_was_given(ground: Ground, standing: str) -> None:
    owner = ground.begin(
        standing, PRELUDE + KNOWN + OWNER, f"web.example:{PORT_KEEP}", f"web.example:{PORT_HOLD}",
        limits={"timeout_seconds": 30},
    )  # fmt: skip
    ground.new("arrived")
    outcome = ground.attack(f"http-{standing}", KNOWN + NEIGHBOUR, f"other.example:{PORT_KEEP}")
    told = outcome.told
    assert told["seen"] == {}
    assert told["reverse"] == []
    assert "of-one-box" not in told["lists"]
    assert f":{7777:04X}" not in told["lists"]
    result = owner.result()
    assert result["exit_code"] == 0, result
    assert result["stdout"].startswith("198.18.1."), result
    assert "VISITED" not in result["stdout"]
    assert [text for *_, text in ground.new("arrived") if "web.example" in text] == []


def _network_namespaces() -> set[str]:
    """Every network namespace that a process is in or holds open."""
    found = set()
    for entry in [*Path("/proc").glob("[0-9]*/ns/net"), *Path("/proc").glob("[0-9]*/fd/*")]:
        try:
            link = os.readlink(entry)
        except OSError:
            continue
        if link.startswith("net:["):
            found.add(link)
    return found


def _mounts() -> list[str]:
    return sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())


@pytest.mark.parametrize("standing", ["root", "user"])
def test_nothing_is_left_of_a_killed_server_with_live_connections_and_the_next_one_works(
    ground: Ground, standing: str
) -> None:
    state = ground.directory(ground.standings[standing].user)
    own = os.getpid()
    mounts = _mounts()
    before = set(descendants(own))
    kept = dict(ground.urls)
    settings = {"AGENTBOX_ALLOW_REQUEST_EGRESS": "1"}
    try:
        with serving(ground, standing, state, **settings) as url:
            ground.urls[standing] = url
            pid = process_that_listens(ground, url)
            code = PRELUDE + KNOWN + OWNER + "\ntime.sleep(60)\n"
            running = [
                ground.begin(standing, code, f"web.example:{PORT_KEEP}", f"web.example:{PORT_HOLD}") for _ in range(3)
            ]
            until(lambda: len(descendants(pid)) >= 9, "the boxes did not start")
            until(lambda: _connected_to(ground, PORT_HOLD) >= 3, "the boxes did not connect")
            below = [pid, *descendants(pid)]
            spaces = {_namespace(one) for one in below} - {_namespace(own), None}
            os.kill(pid, signal.SIGKILL)
            for one in running:
                with pytest.raises(httpx.TransportError):
                    one.result(60)
            until(lambda: not any(Path(f"/proc/{one}").exists() for one in below if one != pid), "processes are left")
        until(lambda: set(descendants(own)) <= before, "processes are left")
        until(lambda: not _network_namespaces() & (spaces - {_namespace_of_world(ground)}), "a namespace is left")
        until(lambda: _connected_to(ground, PORT_HOLD) == 0, "connections are left")
        assert _mounts() == mounts
        with serving(ground, standing, state, **settings) as url:
            ground.urls[standing] = url
            outcome = ground.attack(
                f"http-{standing}",
                f"told['said'] = talk('web.example', {PORT_KEEP}, b'hi\\n', 1)",
                f"web.example:{PORT_KEEP}",
            )
            assert "said" in outcome.told
            assert outcome.seen("net.close")
    finally:
        ground.urls.update(kept)


@pytest.mark.parametrize("standing", ["root", "user"])
def test_nothing_is_left_of_a_killed_runner_with_live_connections(ground: Ground, standing: str) -> None:
    found = ground.standings[standing]
    directory = ground.directory(found.user)
    (directory / "agentbox.policy").write_text(f"net: web.example:{PORT_HOLD}\n")
    mounts, own = _mounts(), os.getpid()
    before = set(descendants(own))
    code = (
        "import socket, time\n"
        f"e = socket.create_connection(('web.example', {PORT_HOLD})); e.sendall(b'x\\n'); time.sleep(90)"
    )
    environment = {**found.environment, "AGENTBOX_DNS_UPSTREAM": NAME_SERVER}
    runner = subprocess.Popen(
        [*ground.world.inside, *found.command, "-m", "agentbox.cli.main", "run", "-q", "--", PYTHON, "-I", "-c", code],
        cwd=directory, env=clean_environment({"AGENTBOX_STATE_DIR": str(ground.directory(found.user)), **environment}),
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    until(lambda: _connected_to(ground, PORT_HOLD) >= 1, "it did not connect", 60)
    below = descendants(runner.pid)
    spaces = {_namespace(one) for one in below} - {_namespace(own), _namespace_of_world(ground), None}
    assert spaces
    runner.kill()
    runner.wait()
    until(lambda: not any(_alive(one) for one in below), "processes are left")
    until(lambda: set(descendants(own)) <= before, "processes are left")
    until(lambda: not _network_namespaces() & spaces, "a namespace is left")
    until(lambda: _connected_to(ground, PORT_HOLD) == 0, "connections are left")
    assert _mounts() == mounts


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def _namespace_of_world(ground: Ground) -> str | None:
    return str(ground.threads.submit(os.readlink, "/proc/thread-self/ns/net").result())


def _connected_to(ground: Ground, port: int) -> int:
    """Connections of the near world that are open to a port of the far one."""
    lines = ground.threads.submit(Path("/proc/thread-self/net/tcp").read_text).result().splitlines()[1:]
    return sum(line.split()[2].endswith(f":{port:04X}") and line.split()[3] == "01" for line in lines)
