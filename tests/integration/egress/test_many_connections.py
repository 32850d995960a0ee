# SPDX-License-Identifier: MIT
"""Five thousand connections at once, some with readers that do not read, through a gateway in a process of its own."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys

import pytest

CONNECTIONS = 5000
STUCK = 300
# What a connection may cost the gateway's process beside its two descriptors: the objects that know of it, and, where
# nobody reads, what is kept of both directions.
MOST_BYTES = 12 * 1024
MOST_STUCK_BYTES = 48 * 1024

PROGRAM = """
import asyncio, resource, socket, sys
from agentbox.egress.gateway import Gateway, Limits
from agentbox.egress.rules import EgressRules
from agentbox.egress.upstream import Upstream
from agentbox.policy.parser import parse

COUNT = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
server = int(sys.argv[2])

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

async def main():
    rules = EgressRules.of(parse("net: 127.0.0.1\\n", root="/"))
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    gateway = Gateway(rules, lambda event: None, Upstream(), limits=Limits(connections=COUNT + 1),
                      destination=lambda guest: ("127.0.0.1", server))
    gateway.listen([listener], {}, {})
    print(listener.getsockname()[1], flush=True)
    loop = asyncio.get_running_loop()
    before = resident()
    most = 0
    async def watch():
        nonlocal most
        while True:
            most = max(most, resident())
            await asyncio.sleep(0.05)
    watching = asyncio.ensure_future(watch())
    while True:
        line = (await loop.run_in_executor(None, sys.stdin.readline)).strip()
        if line == "count":
            print(sum(relay.connected for relay in gateway._open), len(gateway._open), most - before, flush=True)
        else:
            break
    watching.cancel()
    await gateway.close()

asyncio.run(main())
"""

CLIENT = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
COUNT, port, server, STUCK = map(int, sys.argv[1:])
ends = []
listener = socket.socket(fileno=server)
for number in range(COUNT):
    end = socket.socket()
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    end.connect(("127.0.0.1", port))
    end.setblocking(False)
    ends.append(end)
    other, _ = listener.accept()
    other.setblocking(False)
    ends.append(other)
# Both sides of some send until nothing is taken any more, and nobody reads.
data = b"\\x01" * 65536
moving = True
full = set()
while len(full) < 2 * STUCK:
    for number, end in enumerate(ends[: 2 * STUCK]):
        if number not in full:
            try:
                end.send(data)
            except BlockingIOError:
                full.add(number)
print("full", flush=True)
sys.stdin.readline()
"""


def test_five_thousand_connections_cost_bounded_memory_also_where_nobody_reads() -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2 * CONNECTIONS + 1000:
        pytest.skip(f"needs {2 * CONNECTIONS + 1000} descriptors a process (ulimit -Hn)")
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as server:
        # A small buffer of the kernel, so that the test itself needs little.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        arguments = [sys.executable, "-c", PROGRAM, str(CONNECTIONS), str(server.getsockname()[1])]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as gateway:
            assert gateway.stdout is not None
            assert gateway.stdin is not None
            port = gateway.stdout.readline().strip()
            with subprocess.Popen(
                [sys.executable, "-c", CLIENT, str(CONNECTIONS), port, str(server.fileno()), str(STUCK)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[server.fileno()],
            ) as clients:  # fmt: skip
                assert clients.stdout is not None
                assert clients.stdin is not None
                assert clients.stdout.readline() == "full\n"
                gateway.stdin.write("count\n")
                gateway.stdin.flush()
                connected, open_now, grown = map(int, gateway.stdout.readline().split())
                clients.stdin.write("end\n")
                clients.stdin.flush()
            gateway.stdin.write("end\n")
            gateway.stdin.flush()
    assert (connected, open_now) == (CONNECTIONS, CONNECTIONS)
    assert grown < CONNECTIONS * MOST_BYTES + STUCK * MOST_STUCK_BYTES, f"{grown} bytes"
