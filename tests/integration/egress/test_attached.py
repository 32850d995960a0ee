# SPDX-License-Identifier: MIT
"""Ordinary clients in a network namespace whose only way out is the gateway; they know nothing of it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agentbox.egress.attachment import Attachment
from agentbox.egress.events import EgressEvent
from agentbox.egress.gateway import Gateway
from agentbox.egress.stock import AttachmentStock
from agentbox.egress.upstream import Upstream
from tests.conftest import not_here
from tests.integration.egress.crossings import rules_of
from tests.integration.egress.servers import Servers, http_server, tls_server

pytestmark = [
    pytest.mark.linux,
    pytest.mark.skipif(os.geteuid() != 0, reason="not on this host: enters a network namespace from outside"),
    pytest.mark.skipif(shutil.which("nsenter") is None, reason="needs nsenter (util-linux)"),
]


class Attached:
    """A namespace with a gateway."""

    def __init__(self, attachment: Attachment, directory: Path) -> None:
        self.attachment = attachment
        self.events: list[EgressEvent] = []
        self.directory = directory
        self.gateway: Gateway

    async def serve(self, *rules: str) -> None:
        hosts = self.directory / "hosts"
        hosts.write_text("127.0.0.1 allowed.test\n127.0.0.1 other.test\n127.0.0.1 denied.test\n")
        permitted = rules_of(*rules)
        self.gateway = Gateway(permitted, self.events.append, Upstream(hosts_file=str(hosts)))
        ports = await self.attachment.open_loopback_ports(permitted.loopback_ports)
        await self.gateway.serve(self.attachment, ports, {})

    async def run(self, *argv: str) -> tuple[int, str, str]:
        """Run a program inside; its exit code and what it wrote."""
        resolver = self.directory / "resolv.conf"
        resolver.write_text("nameserver 198.18.0.1\n")
        shell = f'mount --bind {resolver} /etc/resolv.conf && exec "$@"'
        process = await asyncio.create_subprocess_exec(
            "nsenter", f"--net={self.attachment.namespace_path}", "unshare", "-m", "sh", "-c", shell, "sh", *argv,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(), 60)
        return process.returncode or 0, out.decode(), err.decode()


@pytest.fixture
async def attached(tmp_path: Path) -> AsyncIterator[Attached]:
    stock = AttachmentStock(1)
    attachment = await stock.lease()
    world = Attached(attachment, tmp_path)
    yield world
    if hasattr(world, "gateway"):
        await world.gateway.close()
    attachment.close()
    await stock.close()


@pytest.fixture
def servers() -> Iterator[Servers]:
    with Servers() as found:
        yield found


def needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")


async def test_curl_reaches_an_allowed_name_over_http_and_https(
    attached: Attached, servers: Servers, certificates: Path
) -> None:
    needs("curl")
    plain, seen = servers.serve(http_server)
    secure, secure_seen = servers.serve(tls_server(certificates / "server.pem"))
    await attached.serve("allowed.test", "127.0.0.1")
    code, out, err = await attached.run(
        "curl", "-sS", f"http://allowed.test:{plain}/one", f"http://allowed.test:{plain}/two"
    )
    assert (code, out) == (0, "GET /one HTTP/1.1GET /two HTTP/1.1"), err
    authority = str(certificates / "certificate.pem")
    code, out, err = await attached.run("curl", "-sS", "--cacert", authority, f"https://allowed.test:{secure}/")
    assert (code, out) == (0, "GET / HTTP/1.1"), err
    assert seen.connections == secure_seen.connections == 1


async def test_curl_is_told_why_it_may_not(attached: Attached, servers: Servers, certificates: Path) -> None:
    needs("curl")
    plain, seen = servers.serve(http_server)
    secure, _ = servers.serve(tls_server(certificates / "server.pem"))
    await attached.serve("allowed.test", "127.0.0.1")
    code, out, _ = await attached.run("curl", "-sS", "http://denied.test/")
    assert code == 6
    code, out, _ = await attached.run("curl", "-sS", "http://192.0.2.9/")
    assert json.loads(out)["rule_missing"] == "net: 192.0.2.9:80"
    code, out, _ = await attached.run("curl", "-sS", "-H", "Host: denied.test", f"http://allowed.test:{plain}/")
    assert json.loads(out)["host"] == "denied.test"
    code, _, err = await attached.run(
        "curl", "-sS", "--connect-to", f"denied.test:443:allowed.test:{secure}", "https://denied.test/"
    )
    assert code == 35, err
    assert seen.requests == []
    code, _, err = await attached.run("curl", "-sS", "telnet://192.0.2.9:23")
    assert code != 0


@pytest.mark.parametrize(
    "program",
    [
        "import urllib.request as u; print(u.urlopen('http://allowed.test:{plain}/').read().decode())",
        "import http.client as h; c = h.HTTPConnection('allowed.test', {plain}); c.request('GET', '/');"
        "c.getresponse().read(); c.request('GET', '/'); print(c.getresponse().read().decode())",
        "import asyncio\nasync def f():\n r, w = await asyncio.open_connection('allowed.test', {plain})\n"
        " w.write(b'GET / HTTP/1.1\\r\\nHost: allowed.test:{plain}\\r\\n\\r\\n')\n"
        " print((await r.readuntil(b'GET / HTTP/1.1'))[-14:].decode())\nasyncio.run(f())",
    ],
)
async def test_python_reaches_an_allowed_name(attached: Attached, servers: Servers, program: str) -> None:
    plain, _ = servers.serve(http_server)
    await attached.serve("allowed.test", "127.0.0.1")
    code, out, err = await attached.run(sys.executable, "-c", program.replace("{plain}", str(plain)))
    assert (code, out) == (0, "GET / HTTP/1.1\n"), err


async def test_node_fetch_reaches_an_allowed_name_and_hears_of_a_denial(attached: Attached, servers: Servers) -> None:
    needs("node")
    plain, _ = servers.serve(http_server)
    await attached.serve("allowed.test", "127.0.0.1")
    program = (
        f"fetch('http://allowed.test:{plain}/').then(r => r.text()).then(t => {{ console.log(t);"
        " return fetch('http://192.0.2.9/') }).then(r => r.json()).then(j => console.log(j.rule_missing))"
    )
    code, out, err = await attached.run("node", "-e", program)
    assert (code, out) == (0, "GET / HTTP/1.1\nnet: 192.0.2.9:80\n"), err


async def test_wget_reaches_an_allowed_name(attached: Attached, servers: Servers) -> None:
    needs("wget")
    plain, _ = servers.serve(http_server)
    await attached.serve("allowed.test", "127.0.0.1")
    code, out, err = await attached.run("wget", "-qO-", f"http://allowed.test:{plain}/")
    assert (code, out) == (0, "GET / HTTP/1.1"), err


async def test_port_of_the_hosts_loopback_is_reached_and_no_other(attached: Attached, servers: Servers) -> None:
    needs("curl")
    plain, seen = servers.serve(http_server)
    other, other_seen = servers.serve(http_server)
    await attached.serve(f"127.0.0.1:{plain}")
    code, out, err = await attached.run("curl", "-sS", f"http://localhost:{plain}/")
    assert (code, out) == (0, "GET / HTTP/1.1"), err
    code, _, _ = await attached.run("curl", "-sS", f"http://127.0.0.1:{other}/")
    assert code == 7
    assert (seen.connections, other_seen.connections) == (1, 0)


async def test_ipv6_literal_is_judged_as_such(attached: Attached, servers: Servers) -> None:
    needs("curl")
    await attached.serve("allowed.test")
    if not attached.attachment.ipv6:
        not_here("there is no IPv6")
    code, out, err = await attached.run("curl", "-sS", "http://[2001:db8::1]:8080/")
    assert code == 0, err
    assert json.loads(out)["rule_missing"] == "net: [2001:db8::1]:8080"
