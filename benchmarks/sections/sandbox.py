# SPDX-License-Identifier: MIT
"""Commands in durable sandboxes beside the same on the host and beside `docker exec`; how long a sandbox with a kernel
of its own takes to its first command, beside `docker run`; and a sandbox among many that idle."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial

from agentbox.sandbox.synchronous import Sandbox
from benchmarks.interleaved import Case, NotHereError, Taken, interleave, progress, reason
from benchmarks.report import Row, Section
from benchmarks.sections import Options
from benchmarks.spread import Spread, ratio_in_rounds

TITLE = "Durable sandboxes"
HOST = "`sh -c 'echo 1'` on the host"
COMMAND = ["/bin/sh", "-c", "echo 1"]
IMAGE = "agentbox/base:latest"
NOTE = f"Docker's cases use the image {IMAGE} (`agentbox image build`) and no network."
# Of a command in a running sandbox: against the host, and how many times as fast as `docker exec`, by backend.
MOST_OF_THE_HOST = {"gvisor": "<= 8", "docker-runsc": "<= 8", "docker-runc": "<= 2.5", "jail": ""}
RUNTIMES = {"docker-runsc": "runsc", "docker-runc": "runc", "gvisor": "runsc"}
OF_DOCKER_EXEC = {"gvisor": "<= 0.1", "docker-runsc": "<= 0.1", "docker-runc": "<= 0.05"}
CREATE = "gvisor sandbox out of stock, to its first command"
DOCKER_RUN = "docker run --runtime=runsc, to the end of the command"
OF_DOCKER_RUN = "<= 0.0333"
MOST_BESIDE_IDLE = "<= 1.3"
# The next box of the stock boots meanwhile.
_REFILL_SECONDS = 3.0


def _on_host() -> None:
    subprocess.run(COMMAND, capture_output=True, check=True)


def _in(sandbox: Sandbox) -> None:
    command = sandbox.exec(COMMAND)
    command.wait()
    if command.stdout != b"1\n":
        raise RuntimeError(f"the command said {command.stdout!r}")


def _start(sandbox: Sandbox) -> None:
    sandbox.start()
    _in(sandbox)


def _timed(work: Callable[[], object]) -> Callable[[], float]:
    def call() -> float:
        began = time.perf_counter()
        work()
        return (time.perf_counter() - began) * 1e3

    return call


def _docker(*words: str) -> str:
    try:
        done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        raise NotHereError("docker is not installed") from None
    if done.returncode:
        raise NotHereError(f"docker {words[0]}: {done.stderr.strip()[-120:]}")
    return done.stdout.strip()


@contextlib.contextmanager
def _state() -> Iterator[None]:
    """A state directory of its own for the sandboxes."""
    before = os.environ.get("AGENTBOX_STATE_DIR")
    with tempfile.TemporaryDirectory(prefix="agentbox-bench-") as directory:
        os.environ["AGENTBOX_STATE_DIR"] = directory
        try:
            yield
        finally:
            if before is None:
                del os.environ["AGENTBOX_STATE_DIR"]
            else:
                os.environ["AGENTBOX_STATE_DIR"] = before


def _running(backend: str) -> str:
    return f"in a running sandbox, {backend}"


def _exec(runtime: str) -> str:
    return f"docker exec, {runtime}"


def commands(rounds: int) -> list[Row]:
    """A command in running boxes of each kind."""
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        cases: list[Case[float]] = [Case(HOST, _timed(_on_host), samples=3)]
        for backend in MOST_OF_THE_HOST:
            sandbox = Sandbox(backend=backend)
            try:
                sandbox.start()
            except Exception as error:
                missing[_running(backend)] = reason(error)
                continue
            stack.callback(sandbox.stop)
            cases.append(Case(_running(backend), _timed(partial(_in, sandbox)), samples=3))
        for runtime in ("runc", "runsc"):
            try:
                name = _docker("run", "-d", f"--runtime={runtime}", "--network=none", IMAGE, "sleep", "3600")
            except NotHereError as error:
                missing[_exec(runtime)] = str(error)
                continue
            stack.callback(_docker, "rm", "-f", name)
            cases.append(Case(_exec(runtime), _timed(partial(_docker, "exec", name, *COMMAND))))
        taken = interleave(cases, rounds)
    rows = [_row(HOST, taken, missing)]
    for backend, wanted in MOST_OF_THE_HOST.items():
        rows.append(_row(_running(backend), taken, missing, HOST, wanted))
        if backend in RUNTIMES:
            case, other = _running(backend), _exec(RUNTIMES[backend])
            rows.append(_row(case, taken, missing, other, OF_DOCKER_EXEC[backend], shown=f"the same, {backend}"))
    return [*rows, *(_row(_exec(runtime), taken, missing) for runtime in ("runc", "runsc"))]


def creating(rounds: int) -> list[Row]:
    """A new sandbox of gVisor, and its first command, beside docker's way to the same."""
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        first = Sandbox(backend="gvisor")
        try:
            first.start()
        except Exception as error:
            return [Row(CREATE, missing=reason(error)), Row(DOCKER_RUN, missing="nothing to compare with")]
        stack.callback(first.stop)
        time.sleep(_REFILL_SECONDS)

        def create() -> float:
            sandbox = Sandbox(backend="gvisor")
            try:
                return _timed(partial(_start, sandbox))()
            finally:
                sandbox.stop()

        words = ("run", "--rm", "--runtime=runsc", "--network=none", IMAGE, *COMMAND)
        cases: list[Case[float]] = [
            Case(CREATE, create, rest_seconds=_REFILL_SECONDS),
            Case(DOCKER_RUN, _timed(partial(_docker, *words))),
        ]
        taken = interleave(cases, rounds)
    return [_row(CREATE, taken, missing, DOCKER_RUN, OF_DOCKER_RUN), _row(DOCKER_RUN, taken, missing)]


def among_idle(count: int, rounds: int) -> Row:
    """A command in one box alone, then the same while others do nothing. Each is measured beside the host's own, since
    minutes pass between the two, in which a host has more to do, or less."""
    name = f"command in a gvisor sandbox beside {count} idle ones"
    with contextlib.ExitStack() as stack:
        sandbox = Sandbox(backend="gvisor")
        try:
            sandbox.start()
        except Exception as error:
            return Row(name, missing=reason(error))
        stack.callback(sandbox.stop)
        cases: list[Case[float]] = [
            Case(HOST, _timed(_on_host)),
            Case(name, _timed(partial(_in, sandbox))),
        ]
        _in(sandbox)
        before = interleave(cases, rounds)
        with contextlib.ExitStack() as idle:
            for number in range(count):
                progress(f"{number + 1} idle sandboxes")
                other = Sandbox(backend="gvisor")
                other.start()
                idle.callback(other.stop)
            beside = interleave(cases, rounds)
    of_host = [ratio_in_rounds(taken.rounds[name], taken.rounds[HOST]).median for taken in (beside, before)]
    ratio = Spread.of([of_host[0] / of_host[1]])
    extra = {
        "alone ms": Spread.of_rounds(before.rounds[name]).median,
        "host ms": Spread.of_rounds(beside.rounds[HOST]).median,
        "host ms, alone": Spread.of_rounds(before.rounds[HOST]).median,
    }
    return Row(name, Spread.of_rounds(beside.rounds[name]), "ms", ratio, "alone", MOST_BESIDE_IDLE, extra=extra)


def _row(
    case: str, taken: Taken[float], missing: dict[str, str], against: str = "", wanted: str = "", shown: str = ""
) -> Row:
    why = missing.get(case) or taken.failed.get(case)
    if why:
        return Row(shown or case, missing=why)
    ratio = None
    if against and against in taken.rounds:
        ratio = ratio_in_rounds(taken.rounds[case], taken.rounds[against])
    value = Spread.of_rounds(taken.rounds[case])
    return Row(shown or case, value, "ms", ratio, against, wanted if ratio else "")


def measure(options: Options) -> Section:
    """All three comparisons."""
    with _state():
        rows = commands(options.rounds_or(40, 4))
        rows += creating(options.rounds_or(20, 3))
        rows.append(among_idle(5 if options.quick else 50, options.rounds_or(40, 10)))
    return Section("sandbox", TITLE, "", tuple(rows), (NOTE,))
