# SPDX-License-Identifier: MIT
"""Other rules for a box that runs: a new port of the loopback leads out at once, a new UNIX socket is refused."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterator

import pytest

from agentbox.egress.events import EgressEvent
from agentbox.engine.way_out import Egress, WayOut
from agentbox.errors import InvalidRequestError, IsolationError
from tests.integration.egress.crossings import rules_of
from tests.integration.egress.servers import Servers, echo_server

pytestmark = [
    pytest.mark.linux,
    pytest.mark.skipif(os.geteuid() != 0, reason="not on this host: enters a network namespace from outside"),
    pytest.mark.skipif(shutil.which("nsenter") is None, reason="needs nsenter (util-linux)"),
]
ECHO = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 20) as sock:
        sock.sendall(b'\\1'); print(sock.recv(1))
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture
def servers() -> Iterator[Servers]:
    with Servers() as found:
        yield found


@pytest.fixture
async def egress() -> AsyncIterator[Egress]:
    found = Egress()
    yield found
    await found.close()


async def inside(way_out: WayOut, *words: str) -> str:
    """What a program in the network namespace prints."""
    network = f"/proc/{os.getpid()}/fd/{way_out.network.namespace_fd}"
    process = await asyncio.create_subprocess_exec(
        *("nsenter", f"--net={network}", sys.executable, "-I", "-c", *words), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    return out.decode().strip()


async def test_a_port_that_a_new_rule_names_leads_out_of_a_box_that_runs(egress: Egress, servers: Servers) -> None:
    events: list[EgressEvent] = []
    port, seen = servers.serve(echo_server)
    other, _ = servers.serve(echo_server)
    way_out = await egress.open(rules_of(f"127.0.0.1:{other}"), events.append)
    try:
        await way_out.serve({})
        assert await inside(way_out, ECHO, "127.0.0.1", str(port)) == "ConnectionRefusedError"
        await way_out.replace(rules_of(f"127.0.0.1:{port}", f"127.0.0.1:{other}"))
        for host in ("127.0.0.1", "::1"):
            assert await inside(way_out, ECHO, host, str(port)) == "b'\\x01'"
        assert await inside(way_out, ECHO, "127.0.0.1", str(other)) == "b'\\x01'"
        assert seen.connections == 2
        await way_out.replace(rules_of(f"127.0.0.1:{other}"))
        assert await inside(way_out, ECHO, "127.0.0.1", str(port)) in ("ConnectionResetError", "b''")
        # The listener is there still: the same rule again needs no other.
        await way_out.replace(rules_of(f"127.0.0.1:{port}"))
        assert await inside(way_out, ECHO, "127.0.0.1", str(port)) == "b'\\x01'"
    finally:
        await way_out.close()


async def test_rules_that_come_before_the_box_is_served_hold_too(egress: Egress, servers: Servers) -> None:
    port, _ = servers.serve(echo_server)
    way_out = await egress.open(rules_of("allowed.test"), lambda _: None)
    try:
        await way_out.replace(rules_of(f"127.0.0.1:{port}"))
        await way_out.serve({})
        assert await inside(way_out, ECHO, "127.0.0.1", str(port)) == "b'\\x01'"
    finally:
        await way_out.close()


async def test_a_new_unix_socket_is_refused_with_the_reason_and_changes_nothing(
    egress: Egress, servers: Servers
) -> None:
    port, _ = servers.serve(echo_server)
    way_out = await egress.open(rules_of(f"127.0.0.1:{port}", "unix:/run/a.sock"), lambda _: None)
    try:
        await way_out.serve({})
        with pytest.raises(
            InvalidRequestError, match=r"unix:/run/b\.sock cannot be opened to a box that runs"
        ) as refused:
            await way_out.replace(rules_of("unix:/run/a.sock", "unix:/run/b.sock"))
        assert refused.value.hint
        assert await inside(way_out, ECHO, "127.0.0.1", str(port)) == "b'\\x01'", "the rules from before hold"
        await way_out.replace(rules_of("unix:/run/a.sock"))
    finally:
        await way_out.close()


async def test_a_port_that_the_box_uses_itself_is_refused_and_changes_nothing(egress: Egress, servers: Servers) -> None:
    port, _ = servers.serve(echo_server)
    used, _ = servers.serve(echo_server)
    way_out = await egress.open(rules_of(f"127.0.0.1:{port}"), lambda _: None)
    listening = await asyncio.create_subprocess_exec(
        "nsenter", f"--net=/proc/{os.getpid()}/fd/{way_out.network.namespace_fd}", sys.executable, "-I", "-c",
        f"import socket; s = socket.create_server(('127.0.0.1', {used})); print('ready', flush=True); input()",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert listening.stdout is not None
        assert await asyncio.wait_for(listening.stdout.readline(), 20) == b"ready\n"
        await way_out.serve({})
        with pytest.raises(IsolationError) as refused:
            await way_out.replace(rules_of(f"127.0.0.1:{used}"))
        assert "forward another" in refused.value.hint
        assert await inside(way_out, ECHO, "127.0.0.1", str(port)) == "b'\\x01'"
    finally:
        await listening.communicate(b"\n")
        await way_out.close()
