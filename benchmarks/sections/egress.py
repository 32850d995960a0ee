# SPDX-License-Identifier: MIT
"""The gateway against a direct loopback connection.

Server, gateway and client are processes of their own on the same processors.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.egress_ends import ADDRESS, ANSWER, BLOCK_BYTES, BULK_BYTES, NAME, REQUEST, process
from benchmarks.interleaved import Case, interleave
from benchmarks.report import Row, Section
from benchmarks.sections import Options
from benchmarks.spread import Spread, ratio_in_rounds

TITLE = "The gateway beside a direct connection"
NOTE = (
    "Each row is through the gateway, its ratio to the same without it. `gateway s` is processor time of the gateway."
)
HTTPS_CONNECTIONS = 40
PLAIN_CONNECTIONS = 100
DIRECT, WAY = "direct", "gateway"


def measure(options: Options) -> Section:
    """Direct and through the gateway, interleaved."""
    if shutil.which("openssl") is None:
        return Section("egress", TITLE, rows=(Row("gateway", missing="openssl is not installed"),))
    with tempfile.TemporaryDirectory(prefix="agentbox-bench-") as directory:
        pem = _certificate(Path(directory))
        with process("server", str(pem)) as (_, ports), process("gateway", json.dumps(ports)) as (pid, ways):
            context = ssl.create_default_context(cafile=str(pem))
            kinds: dict[str, tuple[str, str, Callable[[int], float]]] = {
                "bulk up": ("MB/s", "sink", _bulk_up),
                "bulk down": ("MB/s", "source", _bulk_down),
                "new HTTPS connection with one request": ("ms", "https", lambda port: _https(port, context)),
                "new HTTP connection with one request": ("ms", "http", _http),
            }
            cases = [
                Case(f"{name}, {side}", _measuring(pid, call, where[kind]))
                for name, (_, kind, call) in kinds.items()
                for side, where in ((DIRECT, ports), (WAY, ways))
            ]
            taken = interleave(cases, options.rounds_or(7, 1)).rounds
    rows = []
    for name, (unit, _, _) in kinds.items():
        direct = [[value for value, _ in found] for found in taken[f"{name}, {DIRECT}"]]
        way = [[value for value, _ in found] for found in taken[f"{name}, {WAY}"]]
        used = [seconds for found in taken[f"{name}, {WAY}"] for _, seconds in found]
        extra = {f"{DIRECT} {unit}": Spread.of_rounds(direct).median, "gateway s": Spread.of(used).median}
        rows.append(Row(name, Spread.of_rounds(way), unit, ratio_in_rounds(way, direct), DIRECT, extra=extra))
    return Section("egress", TITLE, "", tuple(rows), (NOTE,))


def _measuring(pid: int, call: Callable[[int], float], port: int) -> Callable[[], tuple[float, float]]:
    def measured() -> tuple[float, float]:
        before = _cpu_seconds(pid)
        value = call(port)
        return value, _cpu_seconds(pid) - before

    return measured


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
