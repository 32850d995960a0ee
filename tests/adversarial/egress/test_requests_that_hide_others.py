# SPDX-License-Identifier: MIT
"""Requests, hellos and tunnels that say one thing to the gateway and another to a server: what arrives is kept by the
server, and nothing of it names a host that no rule allows."""

from __future__ import annotations

import pytest

from tests.adversarial.egress.far_services import EVIL, PORT_KEEP, PORT_SWITCH, WEB
from tests.adversarial.egress.ground import Ground

pytestmark = pytest.mark.linux

# H is a request line and Host that are allowed, E a whole request to a host that is not.
REQUESTS = """
H = f"POST / HTTP/1.1\\r\\nHost: web.example:{KEEP}\\r\\n"
G = f"GET / HTTP/1.1\\r\\nHost: web.example:{KEEP}\\r\\n\\r\\n"
E = f"GET /smuggled HTTP/1.1\\r\\nHost: evil.example:{KEEP}\\r\\n\\r\\n"
size = len(E)
variants = {
    "length and chunked": H + f"Content-Length: {size}\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n" + E,
    "chunked and length": H + f"Transfer-Encoding: chunked\\r\\nContent-Length: 4\\r\\n\\r\\n0\\r\\n\\r\\n" + E,
    "folded coding": H + "Transfer-Encoding:\\r\\n chunked\\r\\n\\r\\n0\\r\\n\\r\\n" + E,
    "coding with a space": H + "Transfer-Encoding : chunked\\r\\n\\r\\n0\\r\\n\\r\\n" + E,
    "coding with a tab": H + "Transfer-Encoding:\\x0bchunked\\r\\n\\r\\n0\\r\\n\\r\\n" + E,
    "coding twice": H + "Transfer-Encoding: chunked\\r\\nTransfer-Encoding: identity\\r\\n\\r\\n0\\r\\n\\r\\n" + E,
    "coding of two": H + "Transfer-Encoding: gzip, chunked\\r\\n\\r\\n0\\r\\n\\r\\n" + E,
    "coding and more": H + "Transfer-Encoding: chunked, identity\\r\\n\\r\\n0\\r\\n\\r\\n" + E,
    "coding misspelt": H + "Transfer-Encoding: xchunked\\r\\n\\r\\n" + E,
    "coding quoted": H + 'Transfer-Encoding: "chunked"\\r\\n\\r\\n' + E,
    "coding in old HTTP": H.replace("1.1", "1.0") + "Transfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n" + E,
    "length twice": H + f"Content-Length: 0\\r\\nContent-Length: {size}\\r\\n\\r\\n" + E,
    "lengths in one": H + f"Content-Length: 0, {size}\\r\\n\\r\\n" + E,
    "length with a sign": H + f"Content-Length: +{size}\\r\\n\\r\\n" + E,
    "length below zero": H + "Content-Length: -1\\r\\n\\r\\n" + E,
    "length in base 16": H + f"Content-Length: 0x{size:x}\\r\\n\\r\\n" + E,
    "length with a line": H + f"Content-Length: {size}_0\\r\\n\\r\\n" + E,
    "length of other digits": H + "Content-Length: \\u00b2\\r\\n\\r\\n" + E,
    "no length": H + "\\r\\n" + E,
    "length is kept": H + "Content-Length: 3\\r\\n\\r\\nabc" + E,
    "chunk that overflows": H + f"Transfer-Encoding: chunked\\r\\n\\r\\n1{'0' * 16}\\r\\n" + E,
    "chunk that lies": H + "Transfer-Encoding: chunked\\r\\n\\r\\n3\\r\\nabcd\\r\\n0\\r\\n\\r\\n" + E,
    "chunk with a bare line end": H + "Transfer-Encoding: chunked\\r\\n\\r\\n0\\n\\n" + E,
    "chunk extension with a line end": H + "Transfer-Encoding: chunked\\r\\n\\r\\n0;x\\n\\r\\n\\r\\n" + E,
    "chunk with a sign": H + "Transfer-Encoding: chunked\\r\\n\\r\\n+0\\r\\n\\r\\n" + E,
    "chunk in base 16": H + "Transfer-Encoding: chunked\\r\\n\\r\\n0x0\\r\\n\\r\\n" + E,
    "trailer": H + "Transfer-Encoding: chunked\\r\\n\\r\\n0\\r\\nHost : evil.example\\r\\n\\r\\n" + E,
    "bare line ends": E.replace("\\r\\n", "\\n"),
    "bare line end after an allowed head": G[:-2] + "\\n" + E,
    "bare return": "GET / HTTP/1.1\\rHost: evil.example\\r\\r" + G,
    "return within a field": f"GET / HTTP/1.1\\r\\nX: a\\rHost: evil.example\\r\\nHost: web.example:{KEEP}\\r\\n\\r\\n",
    "NUL within a field": f"GET / HTTP/1.1\\r\\nHost: web.example:{KEEP}\\0evil.example\\r\\n\\r\\n",
    "two hosts": f"GET / HTTP/1.1\\r\\nHost: web.example:{KEEP}\\r\\nHost: evil.example\\r\\n\\r\\n",
    "two hosts the other way": f"GET / HTTP/1.1\\r\\nHost: evil.example\\r\\nHost: web.example:{KEEP}\\r\\n\\r\\n",
    "hosts in one": f"GET / HTTP/1.1\\r\\nHost: web.example:{KEEP}, evil.example\\r\\n\\r\\n",
    "user before the host": f"GET / HTTP/1.1\\r\\nHost: web.example:{KEEP}@evil.example\\r\\n\\r\\n",
    "host with a path": f"GET / HTTP/1.1\\r\\nHost: evil.example/web.example:{KEEP}\\r\\n\\r\\n",
    "host with a space": f"GET / HTTP/1.1\\r\\nHost: web.example evil.example\\r\\n\\r\\n",
    "host that is folded": f"GET / HTTP/1.1\\r\\nHost: web.example:{KEEP}\\r\\n evil.example\\r\\n\\r\\n",
    "host before a space": f"GET / HTTP/1.1\\r\\nHost : evil.example\\r\\nHost: web.example:{KEEP}\\r\\n\\r\\n",
    "host after a space": f"GET / HTTP/1.1\\r\\n Host: evil.example\\r\\nHost: web.example:{KEEP}\\r\\n\\r\\n",
    "host with bytes": f"GET / HTTP/1.1\\r\\nHost\\u00a0: evil.example\\r\\nHost: web.example:{KEEP}\\r\\n\\r\\n",
    "target of another host": f"GET http://evil.example/ HTTP/1.1\\r\\nHost: web.example:{KEEP}\\r\\n\\r\\n",
    "host of another target": f"GET http://web.example:{KEEP}/ HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n",
    "target with a user":
        f"GET http://web.example:{KEEP}@evil.example/ HTTP/1.1\\r\\nHost: web.example:{KEEP}\\r\\n\\r\\n",
    "target with a backslash":
        f"GET http://evil.example\\\\@web.example:{KEEP}/ HTTP/1.1\\r\\nHost: web.example:{KEEP}\\r\\n\\r\\n",
    "target without a scheme": f"GET //evil.example/ HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n",
    "target of another scheme": f"GET ftp://evil.example/ HTTP/1.1\\r\\nHost: web.example:{KEEP}\\r\\n\\r\\n",
    "target is secure": f"GET https://evil.example/ HTTP/1.1\\r\\nHost: web.example:{KEEP}\\r\\n\\r\\n",
    "authority as a target": f"GET evil.example:80 HTTP/1.1\\r\\nHost: web.example:{KEEP}\\r\\n\\r\\n",
    "address as a host": f"GET / HTTP/1.1\\r\\nHost: {EVIL}:{KEEP}\\r\\n\\r\\n",
    "address as a number": "GET / HTTP/1.1\\r\\nHost: 759388482\\r\\n\\r\\n",
    "empty lines first": "\\r\\n\\r\\n\\r\\n" + E,
    "white space first": " \\t\\r\\n" + E,
    "spaces in the line": f"GET  /  HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n",
    "tabs in the line": f"GET\\t/\\tHTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n",
    "vertical tabs in the line": f"GET\\x0b/\\x0bHTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n",
    "small letters": "get / http/1.1\\r\\nhost: evil.example\\r\\n\\r\\n",
    "other version": "GET / HTTP/1.2\\r\\nHost: evil.example\\r\\n\\r\\n",
    "version of two digits": "GET / HTTP/01.1\\r\\nHost: evil.example\\r\\n\\r\\n",
    "version two": "GET / HTTP/2.0\\r\\nHost: evil.example\\r\\n\\r\\n",
    "no version": "GET /\\r\\nHost: evil.example\\r\\n\\r\\n",
    "other method": "FOO / HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n",
    "method with a target that comes late": "FOO /" + "x" * 9000 + " HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n",
    "long method": "M" * 70 + " / HTTP/1.1\\r\\nHost: evil.example\\r\\n\\r\\n",
    "second request": G + E,
    "second request after an odd one": G + "\\r\\n" + E,
    "connect": f"CONNECT evil.example:443 HTTP/1.1\\r\\nHost: evil.example:443\\r\\n\\r\\n",
    "connect to an address": f"CONNECT {EVIL}:443 HTTP/1.1\\r\\nHost: web.example:{KEEP}\\r\\n\\r\\n",
    "connect after a request": G + "CONNECT evil.example:443 HTTP/1.1\\r\\nHost: evil.example:443\\r\\n\\r\\n",
    "connect within connect": f"CONNECT web.example:{KEEP} HTTP/1.1\\r\\nHost: web.example:{KEEP}\\r\\n\\r\\n"
                              "CONNECT evil.example:443 HTTP/1.1\\r\\nHost: evil.example:443\\r\\n\\r\\n",
    "connect with a body": f"CONNECT web.example:{KEEP} HTTP/1.1\\r\\nHost: web.example:{KEEP}\\r\\n"
                           f"Content-Length: 1\\r\\n\\r\\nx" + E,
    "upgrade that is declined": G[:-2] + "Connection: Upgrade\\r\\nUpgrade: h2c\\r\\n\\r\\n" + E,
}
def ask(name, way):
    out = b""
    try:
        with socket.create_connection(("web.example", KEEP), 5) as end:
            end.settimeout(1.5)
            data = variants[name].encode("latin-1")
            pieces = [data] if way == "at once" else [data[at:at + 7] for at in range(0, len(data), 7)]
            end.setsockopt(6, 1, 1)
            for piece in pieces:
                end.sendall(piece)
            while part := end.recv(65536):
                out += part
                if b"policy_denied" in out or b"bad_request" in out:
                    break
    except OSError as error:
        out += b"<" + type(error).__name__.encode() + b">"
    told[f"{name} {way}"] = out.decode("latin-1")[:200]
several(ask, [(name, way) for name in variants for way in ("at once", "in pieces")])
"""

TLS = """
def hello(*extensions, session=b"", name=None):
    if name is not None:
        entry = b"\\0" + struct.pack("!H", len(name)) + name
        extensions = ((0, struct.pack("!H", len(entry)) + entry), *extensions)
    listed = b"".join(struct.pack("!HH", kind, len(content)) + content for kind, content in extensions)
    body = b"\\x03\\x03" + b"r" * 32 + bytes([len(session)]) + session + b"\\0\\2\\x13\\1" + b"\\1\\0"
    body += struct.pack("!H", len(listed)) + listed
    message = b"\\1" + len(body).to_bytes(3, "big") + body
    return message
def record(message, kind=22):
    return bytes([kind, 3, 1]) + struct.pack("!H", len(message)) + message
def entries(*names):
    listed = b"".join(bytes([kind]) + struct.pack("!H", len(name)) + name for kind, name in names)
    return 0, struct.pack("!H", len(listed)) + listed
whole = record(hello(name=b"evil.example"))
variants = {
    "another name": whole,
    "another allowed place": record(hello(name=b"other.test")),
    "name below": record(hello(name=b"x.web.example")),
    "name with a NUL": record(hello(name=b"web.example\\0.evil.example")),
    "name with a NUL first": record(hello(name=b"evil.example\\0.web.example")),
    "name with a space": record(hello(name=b"evil.example web.example")),
    "name with a line end": record(hello(name=b"evil.example\\r\\n")),
    "address": record(hello(name=b"45.67.89.66")),
    "address in brackets": record(hello(name=b"[::1]")),
    "number": record(hello(name=b"759388482")),
    "empty name": record(hello(name=b"")),
    "two names": record(hello(entries((0, b"web.example"), (0, b"evil.example")))),
    "two kinds of names": record(hello(entries((1, b"web.example"), (0, b"evil.example")))),
    "name twice": record(hello(entries((0, b"web.example")), entries((0, b"evil.example")))),
    "encrypted behind another name": record(hello((0xFE0D, b"\\0" * 64), name=b"evil.example")),
    "name in two records": record(hello(name=b"evil.example")[:20]) + record(hello(name=b"evil.example")[20:]),
    "name in small records": b"".join(record(bytes([one])) for one in hello(name=b"evil.example")),
    "record of another kind within": record(hello(name=b"evil.example")[:20]) + record(b"\\2\\x28", 21)
                                     + record(hello(name=b"evil.example")[20:]),
    "bytes after the extensions": record(b"\\1" + (len(hello(name=b"evil.example")) - 4 + 3).to_bytes(3, "big")
                                         + hello(name=b"evil.example")[4:] + b"xyz"),
    "old hello": b"\\x80\\x2e\\x01\\x03\\x01" + b"\\0" * 43,
    "record of no length": record(b"") + whole,
    "version 5": b"\\x16\\3\\5" + whole[3:],
}
told.update({name: [] for name in (*variants, "fits", "no name", "no name to an address")})
def say(name, data, host="web.example"):
    told[name].append(talk(host, KEEP, data, 3)[:60])
several(say, [
    *variants.items(),
    *(("fits", record(hello(name=given))) for given in (b"web.example", b"WEB.Example", b"web.example.")),
    ("no name", record(hello())),
    ("no name to an address", record(hello()), EVIL),
])
"""

TUNNELS = """
def upgrade():
    with socket.create_connection(("web.example", SWITCH), 5) as end:
        end.settimeout(4)
        end.sendall(f"GET / HTTP/1.1\\r\\nHost: web.example:{SWITCH}\\r\\n".encode())
        end.sendall(b"Connection: Upgrade\\r\\nUpgrade: any\\r\\n\\r\\n")
        said = end.recv(4096)
        end.sendall(f"GET /inside HTTP/1.1\\r\\nHost: evil.example:{KEEP}\\r\\n\\r\\n".encode())
        return said[:12].decode(), end.recv(4096).decode()[:20]
def switch_that_nobody_asked_for():
    with socket.create_connection(("web.example", SWITCH), 5) as end:
        end.settimeout(4)
        end.sendall(f"GET / HTTP/1.1\\r\\nHost: web.example:{SWITCH}\\r\\n\\r\\n".encode())
        said = end.recv(4096)
        end.sendall(f"GET /unasked HTTP/1.1\\r\\nHost: evil.example:{KEEP}\\r\\n\\r\\n".encode())
        return end.recv(4096).decode()[:13]
two = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + b"\\0\\0\\0\\4\\0\\0\\0\\0\\0"
def http2():
    return talk("web.example", KEEP, two, 3)[:12]
def http2_to_an_address():
    return talk(EVIL, KEEP, two, 3)[:12]
several(attempt, [(upgrade,), (switch_that_nobody_asked_for,), (http2,), (http2_to_an_address,)])
"""


def _known(**more: object) -> str:
    known = {"EVIL": EVIL, "WEB": WEB, "KEEP": PORT_KEEP, "SWITCH": PORT_SWITCH, **more}
    return "".join(f"{name} = {value!r}\n" for name, value in known.items())


RULES = (f"web.example:{PORT_KEEP}", f"web.example:{PORT_SWITCH}")


def test_no_request_that_arrives_names_another_host_however_it_is_hidden(ground: Ground, seat: str) -> None:
    ground.new("arrived")
    outcome = ground.attack(seat, _known() + REQUESTS, *RULES)
    arrived = ground.new("arrived")
    assert arrived
    for address, _, text in arrived:
        assert address == WEB
        # A line that has no end yet may go on until it is known to be a request's; nothing can act on it.
        received = text[: text.rfind("\n") + 1]
        assert "evil" not in received.lower(), received
        assert "smuggled" not in received, received
        assert EVIL not in received
    told = outcome.told
    assert len(told) > 140
    for name, said in told.items():
        assert "policy_denied" in said or "HTTP/1.1 400" in said or "<" in said, (name, said)
    assert f"evil.example:{PORT_KEEP}" in outcome.denied()


def test_no_hello_that_arrives_names_another_host_however_it_is_broken(ground: Ground, seat: str) -> None:
    ground.new("arrived")
    outcome = ground.attack(seat, _known() + TLS, *RULES)
    told = outcome.told
    fits, nameless, to_address = told.pop("fits"), told.pop("no name"), told.pop("no name to an address")
    arrived = ground.new("arrived")
    assert {address for address, *_ in arrived} == {WEB}
    received = [text.lower() for *_, text in arrived if text.startswith("\x16")]
    assert not [text for text in received if "evil" in text or "45.67" in text or "x.web" in text], received
    assert len([text for text in received if "web.example" in text]) == len(fits) == 3
    assert len(received) == 4, received
    assert nameless
    assert to_address[0].startswith("\x15\x03")
    for name, (said,) in told.items():
        if name not in ("old hello", "version 5"):
            assert said.startswith("\x15\x03") or "Reset" in said, (name, said)


def test_a_tunnel_leads_to_the_host_that_was_judged_and_nowhere_else(ground: Ground, seat: str) -> None:
    ground.new("arrived")
    told = ground.attack(seat, _known() + TUNNELS, *RULES).told
    assert told["upgrade"][0] == "HTTP/1.1 101"
    assert told["upgrade"][1].startswith("<GET /inside")
    assert "<GET" not in str(told["switch_that_nobody_asked_for"])
    assert not str(told["http2_to_an_address"]).startswith("HTTP/1.1 2")
    arrived = ground.new("arrived")
    assert {address for address, *_ in arrived} == {WEB}
    assert not [text for *_, text in arrived if "/unasked" in text]
