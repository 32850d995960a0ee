# SPDX-License-Identifier: MIT
"""Allowlists as the client of the first API asks for them: echoed, refused with its words, and held by the gateway."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.adversarial.egress.far_services import PORT_KEEP
from tests.adversarial.egress.ground import Ground, serving

pytestmark = pytest.mark.linux

CLIENT = f"""
import json, sys
from agentbox.sdk.client import AgentboxClient
client = AgentboxClient(sys.argv[1])
found = {{}}
def ask(name, code, **more):
    try:
        found[name] = client.run(code, **more)
    except Exception as error:
        found[name] = str(error)
GET = '''
import urllib.request
for host in ("web.example", "other.example", "evil.example", "45.67.89.66", "127.0.0.1"):
    try:
        print(host, urllib.request.urlopen(f"http://{{host}}:{PORT_KEEP}/", timeout=5).status)
    except Exception as error:
        print(host, "denied")
'''
NODE = '''
for (const host of ["web.example", "other.example", "evil.example", "45.67.89.66", "127.0.0.1"])
    await fetch(`http://${{host}}:{PORT_KEEP}/`).then(
        answer => console.log(host, answer.status === 403 ? "denied" : answer.status),
        () => console.log(host, "denied"))
'''
# The ways past the old hook, which was in the interpreter.
PAST = '''
import socket, subprocess, sys, _socket
where = ("45.67.89.66", {PORT_KEEP})
def answer(end):
    end.send(b"GET / HTTP/1.1\\\\r\\\\nHost: x\\\\r\\\\n\\\\r\\\\n")
    return end.recv(12)
def by_code():
    end = socket.socket(); end.settimeout(5); end.connect_ex(where); return answer(end)
def below():
    end = _socket.socket(2, 1); end.settimeout(5); end.connect(where); return answer(end)
def of_the_class():
    end = socket.socket(); end.settimeout(5); socket.socket.__mro__[1].connect(end, where); return answer(end)
def datagram():
    end = socket.socket(2, 2); end.settimeout(1); end.sendto(b"x", where); return end.recv(9)
def other_interpreter():
    code = "import socket; s = socket.create_connection(%r, 5); s.send(b'hello' + bytes([10, 10])); " % (where,)
    code += "print(s.recv(12))"
    return subprocess.run([sys.executable, "-S", "-c", code], capture_output=True).stdout.strip()
for way in (by_code, below, of_the_class, datagram, other_interpreter):
    try:
        print(way.__name__, way())
    except Exception as error:
        print(way.__name__, type(error).__name__)
'''
ask("none", GET)
ask("empty", GET, egress_allowlist=[])
ask("allowed", GET, egress_allowlist=["WEB.Example"])
ask("port", GET, egress_allowlist=["web.example:{PORT_KEEP}"])
ask("other port", GET, egress_allowlist=["web.example:443"])
ask("node", "(async () => {{" + NODE + "}})()", language="javascript", egress_allowlist=["web.example"])
ask("past", PAST, egress_allowlist=["web.example"])
ask("foreign", "1", egress_allowlist=["web.example", "evil.example:80", "bad.example"])
for entry in ("*", "*.web.example", "http://web.example", "[::1]", "10.0.0.0/8", "a b", "web.example:x"):
    ask(entry, "1", egress_allowlist=[entry])
client.close()
print(json.dumps(found))
"""
HOSTS = ("web.example", "other.example", "evil.example", "45.67.89.66", "127.0.0.1")


def _ask(ground: Ground, url: str, s1_python: str) -> dict[str, Any]:
    done = subprocess.run(
        [*ground.world.inside, s1_python, "-c", CLIENT, url],
        capture_output=True, text=True, timeout=240, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("standing", ["root", "user"])
def test_an_allowlist_of_the_first_client_is_echoed_and_held(ground: Ground, s1_python: str, standing: str) -> None:
    state = ground.directory(ground.standings[standing].user)
    ground.new("arrived")
    with serving(ground, standing, state, AGENTBOX_EGRESS_ALLOWLIST="web.example, other.example") as url:
        found = _ask(ground, url, s1_python)

    def reached(name: str) -> list[str]:
        return [line.split()[0] for line in found[name]["stdout"].splitlines() if not line.endswith("denied")]

    for name, hosts, echoed in (
        ("none", ["web.example", "other.example"], ["web.example", "other.example"]),
        ("empty", [], []),
        ("allowed", ["web.example"], ["web.example"]),
        ("port", ["web.example"], [f"web.example:{PORT_KEEP}"]),
        ("other port", [], ["web.example:443"]),
        ("node", ["web.example"], ["web.example"]),
    ):
        assert [line.split()[0] for line in found[name]["stdout"].splitlines()] == list(HOSTS), found[name]
        assert reached(name) == hosts, found[name]
        assert found[name]["egress_allowlist"] == echoed
        assert found[name]["network_isolated"] is True
    assert "HTTP/1.1 2" not in found["past"]["stdout"], found["past"]
    assert len(found["past"]["stdout"].splitlines()) == 5, found["past"]
    assert {address for address, *_ in ground.new("arrived")} == {"45.67.89.10"}
    assert found["foreign"] == (
        "agentbox HTTP 400: egress_allowlist entries not permitted by AGENTBOX_EGRESS_ALLOWLIST: evil.example, "
        "bad.example"
    )
    for entry in ("*", "*.web.example", "http://web.example", "[::1]", "10.0.0.0/8", "a b", "web.example:x"):
        assert found[entry] == f"agentbox HTTP 400: Invalid egress allowlist entry: {entry!r}"


def test_an_operator_s_empty_list_denies_every_host_to_the_first_client(ground: Ground, s1_python: str) -> None:
    with serving(ground, "root", ground.directory(None), AGENTBOX_EGRESS_ALLOWLIST="") as url:
        found = _ask(ground, url, s1_python)
    for name in ("none", "empty"):
        assert found[name]["stdout"].count("denied") == len(HOSTS), found[name]
        assert found[name]["egress_allowlist"] == []
        assert found[name]["network_isolated"] is True
    for name in ("allowed", "port", "node"):
        assert found[name].startswith("agentbox HTTP 400: egress_allowlist entries not permitted"), found[name]


def test_without_an_operator_s_list_the_first_client_gets_no_network_and_a_warning(
    ground: Ground, s1_python: str
) -> None:
    with serving(ground, "root", ground.directory(None)) as url:
        found = _ask(ground, url, s1_python)
    for name in ("none", "empty", "allowed", "port", "node"):
        assert found[name]["stdout"].count("denied") == len(HOSTS), found[name]
        assert found[name]["network_isolated"] is True
    assert found["allowed"]["egress_allowlist"] == ["web.example"]
    assert "AGENTBOX_EGRESS_ALLOWLIST" in str(found["allowed"]["warnings"])
