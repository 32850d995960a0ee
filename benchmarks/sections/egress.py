# SPDX-License-Identifier: MIT
"""The gateway against a direct loopback connection: `python -m benchmarks.egress [--rounds N] [--json FILE]`.

Server, gateway and client are processes of their own. Every round measures direct and through the gateway, in changing
order; ratios are medians of the rounds' own ratios, so that a busy moment hits both sides of one ratio alike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from agentbox.egress.gateway import Gateway
from agentbox.egress.rules import EgressRules
from agentbox.egress.upstream import Upstream
from agentbox.policy.parser import parse

BULK_BYTES = 512 << 20
BLOCK_BYTES = 256 << 10
HTTPS_CONNECTIONS = 40
PLAIN_CONNECTIONS = 100
NAME = "allowed.test"
ADDRESS = "127.0.0.1"
REQUEST = f"GET / HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode()
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds, after one that is thrown away")
    parser.add_argument("--json", type=Path, default=Path("build/bench-egress.json"))
    parser.add_argument("--role", choices=["server", "gateway"], help=argparse.SUPPRESS)
    parser.add_argument("--argument", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "server":
        _serve(Path(options.argument))
    elif options.role == "gateway":
        # As in the server.
        uvloop.run(_gateway(json.loads(options.argument)))
    else:
        _measure(options.rounds, options.json)


def _measure(rounds: int, report: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="agentbox-bench-") as directory:
        pem = _certificate(Path(directory))
        with _process("server", str(pem)) as (_, ports), _process("gateway", json.dumps(ports)) as (pid, ways):
            context = ssl.create_default_context(cafile=str(pem))
            cases: dict[str, Callable[[int], float]] = {
                "bulk up, MB/s": _bulk_up,
                "bulk down, MB/s": _bulk_down,
                "new HTTPS connection with one request, ms": lambda port: _https(port, context),
                "new HTTP connection with one request, ms": _http,
            }
            rows = [
                _row(name, case, ports[kind], ways[kind], rounds, pid)
                for (name, case), kind in zip(cases.items(), ("sink", "source", "https", "http"), strict=True)
            ]
    print("| what | direct | gateway | ratio | CPU of the gateway, s |\n|---|---|---|---|---|")
    for row in rows:
        print("| {what} | {direct:.2f} | {gateway:.2f} | {ratio:.2f} | {cpu_seconds:.2f} |".format(**row))
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps({"load_average": os.getloadavg(), "cases": rows}, indent=2) + "\n", encoding="utf-8")
    print(f"\n{report}")


def _row(
    name: str, case: Callable[[int], float], direct: int, way: int, rounds: int, pid: int
) -> dict[str, float | str]:
    measured: dict[int, list[float]] = {direct: [], way: []}
    cpu = []
    for number in range(rounds + 1):
        for port in (direct, way) if number % 2 else (way, direct):
            before = _cpu_seconds(pid)
            value = case(port)
            if number:
                measured[port].append(value)
                if port == way:
                    cpu.append(_cpu_seconds(pid) - before)
    return {
        "what": name,
        "direct": statistics.median(measured[direct]),
        "gateway": statistics.median(measured[way]),
        "ratio": statistics.median(b / a for a, b in zip(measured[direct], measured[way], strict=True)),
        "cpu_seconds": statistics.median(cpu),
    }


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _bulk_up(port: int) -> float:
    data = memoryview(b"\x01" * BLOCK_BYTES)
    with socket.create_connection((ADDRESS, port)) as end:
        begin = time.perf_counter()
        for _ in range(BULK_BYTES // BLOCK_BYTES):
            end.sendall(data)
        end.shutdown(socket.SHUT_WR)
        assert end.recv(1) == b"k"
        return BULK_BYTES / (time.perf_counter() - begin) / 1e6


def _bulk_down(port: int) -> float:
    buffer = bytearray(BLOCK_BYTES)
    with socket.create_connection((ADDRESS, port)) as end:
        begin = time.perf_counter()
        end.sendall(b"\x01")
        left = BULK_BYTES
        while left:
            left -= end.recv_into(buffer)
        return BULK_BYTES / (time.perf_counter() - begin) / 1e6


def _https(port: int, context: ssl.SSLContext) -> float:
    begin = time.perf_counter()
    for _ in range(HTTPS_CONNECTIONS):
        with (
            socket.create_connection((ADDRESS, port)) as plain,
            context.wrap_socket(plain, server_hostname=NAME) as end,
        ):
            end.sendall(REQUEST)
            assert end.recv(4096) == ANSWER
    return (time.perf_counter() - begin) * 1000 / HTTPS_CONNECTIONS


def _http(port: int) -> float:
    begin = time.perf_counter()
    for _ in range(PLAIN_CONNECTIONS):
        with socket.create_connection((ADDRESS, port)) as end:
            end.sendall(REQUEST)
            assert end.recv(4096) == ANSWER
    return (time.perf_counter() - begin) * 1000 / PLAIN_CONNECTIONS


@contextmanager
def _process(role: str, argument: str) -> Iterator[tuple[int, dict[str, int]]]:
    command = [sys.executable, "-m", "benchmarks.egress", "--role", role, "--argument", argument]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield process.pid, json.loads(process.stdout.readline())
        finally:
            process.stdin.close()


def _serve(pem: Path) -> None:
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


async def _gateway(ports: dict[str, int]) -> None:
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


def _certificate(directory: Path) -> Path:
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "1", "-subj", "/CN=test", "-addext", f"subjectAltName=DNS:{NAME}",
            "-keyout", str(key), "-out", str(certificate),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    certificate.write_text(certificate.read_text() + key.read_text())
    return certificate


if __name__ == "__main__":
    main()
