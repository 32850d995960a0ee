# SPDX-License-Identifier: MIT
"""Callers that ask for their next run as soon as the last has ended. A program of its own, so that it is small.

`python -m benchmarks.closed_loops` reads what it is to do as one JSON line and prints a Loop as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import selectors
import subprocess
import sys
import time
from collections import Counter
from typing import Any

from benchmarks.http_door import Connection, answered, check
from benchmarks.interleaved import NotHereError
from benchmarks.spread import percentile

STALLED_SECONDS = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Loop:
    """What some callers saw in some seconds, each with one run at a time; latencies in milliseconds. `warm` is how many
    runs had box and interpreter ready before; None where the service does not say."""

    runs: int
    seconds: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    warm: int | None = None

    @property
    def rate(self) -> float:
        """Runs per second, of all callers together."""
        return self.runs / self.seconds


def looped(order: dict[str, Any]) -> Loop:
    """Do it in a process of its own. `order` has `callers`, `seconds`, and `url` with `body`, or `argv`."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.closed_loops"],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        check=False,
        timeout=order["seconds"] + 2 * STALLED_SECONDS,
    )
    if done.returncode:
        raise NotHereError(done.stderr.strip().rpartition("\n")[2])
    return Loop(**json.loads(done.stdout))


def over_http(url: str, body: dict[str, Any], callers: int, seconds: float) -> Loop:
    """Requests on connections that are kept open."""
    selector = selectors.DefaultSelector()
    connections = [Connection(url, body) for _ in range(callers)]
    for connection in connections:
        # The first run of a connection opens it and is not counted.
        connection()
    begun: dict[Connection, float] = {}
    taken: list[float] = []
    starts: Counter[str] = Counter()

    def ask(connection: Connection) -> None:
        begun[connection] = time.perf_counter()
        connection.send()

    for connection in connections:
        selector.register(connection.ready(), selectors.EVENT_READ, connection)
    start = now = time.perf_counter()
    for connection in connections:
        ask(connection)
    while begun:
        ready = selector.select(STALLED_SECONDS)
        if not ready:
            raise RuntimeError("the server has stopped answering")
        for key, _ in ready:
            connection = key.data
            piece = connection.ready_bytes()
            if not piece:
                raise RuntimeError(f"the server closed the connection: {connection.answer[-300:]!r}")
            connection.answer += piece
            if not answered(connection.answer):
                continue
            now = time.perf_counter()
            check(connection.answer)
            taken.append((now - begun.pop(connection)) * 1000)
            starts[connection.timings().get("start", "")] += 1
            if now - start < seconds:
                ask(connection)
    return _loop(taken, now - start, None if starts[""] else starts["warm"])


def by_spawning(argv: list[str], callers: int, seconds: float) -> Loop:
    """Programs that print 1."""
    selector = selectors.DefaultSelector()
    begun: dict[int, tuple[float, int]] = {}
    taken: list[float] = []

    def spawn() -> None:
        read, write = os.pipe()
        at = time.perf_counter()
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, write, 1)]
        begun[read] = at, os.posix_spawnp(argv[0], argv, os.environ, file_actions=actions)
        os.close(write)
        selector.register(read, selectors.EVENT_READ)

    start = now = time.perf_counter()
    said: dict[int, bytes] = {}
    for _ in range(callers):
        spawn()
    while begun:
        ready = selector.select(STALLED_SECONDS)
        if not ready:
            raise RuntimeError(f"{argv[0]} does not end")
        for key, _ in ready:
            read = key.fd
            if piece := os.read(read, 65536):
                said[read] = said.get(read, b"") + piece
                continue
            at, pid = begun.pop(read)
            if os.waitpid(pid, 0)[1] or said.pop(read, b"") != b"1\n":
                raise RuntimeError(f"{argv[0]} failed")
            now = time.perf_counter()
            selector.unregister(read)
            os.close(read)
            taken.append((now - at) * 1000)
            if now - start < seconds:
                spawn()
    return _loop(taken, now - start)


def _loop(taken: list[float], seconds: float, warm: int | None = None) -> Loop:
    return Loop(len(taken), seconds, percentile(taken, 50), percentile(taken, 99), max(taken), warm)


def main() -> None:
    """Read the order, follow it, print what was seen."""
    order = json.loads(sys.stdin.readline())
    follow = by_spawning if "argv" in order else over_http
    print(json.dumps(dataclasses.asdict(follow(**order))))


if __name__ == "__main__":
    main()
