# SPDX-License-Identifier: MIT
"""What the gateway is measured between: servers on loopback, and a gateway that leads to them; processes of their own.

`python -m benchmarks.egress_ends server PEM` and `python -m benchmarks.egress_ends gateway PORTS` print their ports as
JSON and live until standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentbox.egress.gateway import Gateway
from agentbox.egress.rules import EgressRules
from agentbox.egress.upstream import Upstream
from agentbox.policy.parser import parse

BULK_BYTES = 512 << 20
BLOCK_BYTES = 256 << 10
NAME = "allowed.test"
ADDRESS = "127.0.0.1"
REQUEST = f"GET / HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode()
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


@contextmanager
def process(role: str, argument: str) -> Iterator[tuple[int, dict[str, int]]]:
    """One of the two, with its id and its ports by what is behind them."""
    command = [sys.executable, "-m", "benchmarks.egress_ends", role, argument]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as ends:
        assert ends.stdout is not None
        assert ends.stdin is not None
        try:
            yield ends.pid, json.loads(ends.stdout.readline())
        finally:
            ends.stdin.close()


def serve(pem: Path) -> None:
    """Servers on loopback until standard input ends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)

    def sink(end: socket.socket) -> None:
        buffer = bytearray(BLOCK_BYTES)
        while end.recv_into(buffer):
            pass
        end.sendall(b"k")

    def source(end: socket.socket) -> None:
        end.recv(1)
        data = memoryview(b"\x01" * BLOCK_BYTES)
        for _ in range(BULK_BYTES // BLOCK_BYTES):
            end.sendall(data)

    def https(end: socket.socket) -> None:
        with context.wrap_socket(end, server_side=True) as secure:
            secure.recv(4096)
            secure.sendall(ANSWER)

    def http(end: socket.socket) -> None:
        end.recv(4096)
        end.sendall(ANSWER)

    ports = {}
    for name, handle in (("sink", sink), ("source", source), ("https", https), ("http", http)):
        listener = socket.create_server((ADDRESS, 0), backlog=128)
        ports[name] = listener.getsockname()[1]
        threading.Thread(target=_accept, args=(listener, handle), daemon=True).start()
    print(json.dumps(ports), flush=True)
    sys.stdin.read()


def _accept(listener: socket.socket, handle: Callable[[socket.socket], None]) -> None:
    # One connection at a time: a thread for each would be measured as well.
    while True:
        end, _ = listener.accept()
        with end:
            handle(end)


async def gate(ports: dict[str, int]) -> None:
    """A gateway with a listener for each server, which is where its connections were to go, by a name."""
    rules = EgressRules.of(parse(f"net: {NAME}, {ADDRESS}\n", root="/"))
    with tempfile.NamedTemporaryFile("w", suffix=".hosts") as hosts:
        hosts.write(f"{ADDRESS} {NAME}\n")
        hosts.flush()
        ways: dict[int, int] = {}
        gateway = Gateway(
            rules,
            lambda _: None,
            Upstream(hosts_file=hosts.name),
            destination=lambda guest: (where, ways[guest.getsockname()[1]]),
        )
        where = gateway.names.address_of(NAME, socket.AF_INET)
        listeners = {name: socket.create_server((ADDRESS, 0), backlog=128) for name in ports}
        ways.update({listener.getsockname()[1]: ports[name] for name, listener in listeners.items()})
        gateway.listen(list(listeners.values()), {}, {})
        print(json.dumps({name: listener.getsockname()[1] for name, listener in listeners.items()}), flush=True)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
        await ended.wait()
        await gateway.close()


def main(role: str, argument: str) -> None:
    """Be one of the two."""
    if role == "server":
        serve(Path(argument))
    else:
        asyncio.run(gate(json.loads(argument)))


if __name__ == "__main__":
    main(*sys.argv[1:])
