# SPDX-License-Identifier: MIT
"""Durable sandboxes behind a server beside those of one's own process: commands, commands among many boxes that idle
and the memory of the server then, and a large file on its way in beside `docker cp`."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from agentbox.linux import mounts
from agentbox.sandbox.synchronous import Sandbox
from benchmarks import ways
from benchmarks.interleaved import Case, NotHereError, interleave, progress, reason
from benchmarks.processes import rss_bytes
from benchmarks.report import Row, Section
from benchmarks.sections import Options
from benchmarks.sections.sandbox import IMAGE, _docker, _in, _row, _state, _timed
from benchmarks.spread import Spread
from tests.running_server import RunningServer, launch

TITLE = "Durable sandboxes behind a server"
OWN = "command in a sandbox of the process, jail"
SERVED = "the same through the server"
OF_OWN = "<= 1.5"
UPLOAD = "upload of a large file through the server, jail"
DOCKER_CP = "docker cp of it"
# The time of an upload against that of docker cp, whose half the speed is wanted at least.
OF_DOCKER_CP = "<= 2"
MOST_BESIDE_IDLE = "<= 1.3"
MOST_MEMORY_MB = 100
_KEY = "k" * 40
_END_SECONDS = 30.0
_PIECE = os.urandom(1 << 20)
NOTE = "The file of random bytes is 1 GB, with --quick 64 MB. Memory is that of the server and of its keeper together."


def beside(count: int) -> str:
    """The row of a command among so many."""
    return f"command through the server beside {count} idle boxes"


def memory(count: int) -> str:
    """The row of what the server needs for them."""
    return f"memory of the server for {count} boxes"


def measure(options: Options) -> Section:
    """All of it."""
    try:
        with _state(), contextlib.ExitStack() as stack:
            server = _serve(stack)
            rows = _commands(stack, server.url, options.rounds_or(40, 4))
            rows += _among_idle(server, 5 if options.quick else 100, options.rounds_or(40, 10))
            rows += _uploads(stack, server.url, 64 if options.quick else 1024, options.rounds_or(5, 2))
    except NotHereError as error:
        rows = [Row(name, missing=str(error)) for name in (OWN, SERVED, UPLOAD)]
    return Section("served", TITLE, OWN, tuple(rows), (NOTE,))


def _serve(stack: contextlib.ExitStack) -> RunningServer:
    state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentbox-bench-")))
    stack.callback(_end_keeper, state)
    settings = {"AGENTBOX_TOKEN": _KEY, "AGENTBOX_SANDBOX_BACKEND": "jail", "AGENTBOX_MAX_SANDBOXES": "1000"}
    server = launch(state, (), {**ways.ALWAYS, **settings})
    stack.callback(server.stop)
    return server


def _keeper(state: Path) -> int:
    return int((state / "keeper.lock").read_text())


def _end_keeper(state: Path) -> None:
    """The keeper of a server outlives it, with what it mounted."""
    with contextlib.suppress(OSError, ValueError):
        keeper = _keeper(state)
        os.kill(keeper, signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline:
            os.kill(keeper, 0)
            time.sleep(0.05)
    for point in mounts.below(str(state)):
        mounts.detach(point)


def _commands(stack: contextlib.ExitStack, url: str, rounds: int) -> list[Row]:
    own, served = Sandbox(backend="jail", url=""), Sandbox(backend="jail", url=url, api_key=_KEY)
    for sandbox in (own, served):
        sandbox.start()
        stack.callback(sandbox.stop)
    cases = [Case(OWN, _timed(partial(_in, own)), samples=5), Case(SERVED, _timed(partial(_in, served)), samples=5)]
    taken = interleave(cases, rounds)
    return [_row(OWN, taken, {}), _row(SERVED, taken, {}, OWN, OF_OWN)]


def _among_idle(server: RunningServer, count: int, rounds: int) -> list[Row]:
    with contextlib.ExitStack() as stack:

        def start() -> Sandbox:
            sandbox = Sandbox(backend="jail", memory="64m", url=server.url, api_key=_KEY)
            sandbox.start()
            stack.callback(sandbox.stop)
            return sandbox

        work = _timed(partial(_in, start()))
        alone = [work() for _ in range(rounds)]
        before = _memory(server)
        for number in range(count):
            progress(f"{number + 1} idle boxes")
            start()
        more = _memory(server) - before
        among = [work() for _ in range(rounds)]
    ratio = Spread.of([Spread.of(among).median / Spread.of(alone).median])
    return [
        Row(beside(count), Spread.of(among), "ms", ratio, "alone", MOST_BESIDE_IDLE),
        Row(memory(count), Spread.of([more / (1 << 20)]), "MB", wanted=f"<= {MOST_MEMORY_MB}"),
    ]


def _memory(server: RunningServer) -> int:
    return rss_bytes(server.pid) + rss_bytes(_keeper(server.state_dir))


def _uploads(stack: contextlib.ExitStack, url: str, megabytes: int, rounds: int) -> list[Row]:
    file = stack.enter_context(_file(megabytes))
    sandbox = Sandbox(backend="jail", disk="3g", url=url, api_key=_KEY)
    sandbox.start()
    stack.callback(sandbox.stop)
    missing: dict[str, str] = {}
    cases = [Case(UPLOAD, _timed(partial(sandbox.files.upload, file, "file")), rest_seconds=1)]
    try:
        name = _docker("run", "-d", "--network=none", IMAGE, "sleep", "3600")
        stack.callback(_docker, "rm", "-f", name)
        cases.append(Case(DOCKER_CP, _timed(partial(_docker, "cp", file, f"{name}:/file")), rest_seconds=1))
    except NotHereError as error:
        missing[DOCKER_CP] = reason(error)
    taken = interleave(cases, rounds)
    return [_row(UPLOAD, taken, missing, DOCKER_CP, OF_DOCKER_CP), _row(DOCKER_CP, taken, missing)]


@contextlib.contextmanager
def _file(megabytes: int) -> Iterator[str]:
    with tempfile.NamedTemporaryFile(prefix="agentbox-bench-") as file:
        for _ in range(megabytes):
            file.write(_PIECE)
        file.flush()
        yield file.name
