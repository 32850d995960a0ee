# SPDX-License-Identifier: MIT
"""One run at a time, with idle gaps: floors, agentbox by each of its doors, and its rivals."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from benchmarks import rivals, ways
from benchmarks.containers import Runsc, program
from benchmarks.http_door import Connection
from benchmarks.interleaved import Case, interleave
from benchmarks.preparing import Wish, prepared, unmeasured
from benchmarks.processes import BASELINE, OUTPUT, PROGRAM, PYTHON, seen_to_work, spawning
from benchmarks.report import Row, Section
from benchmarks.sections import Options
from benchmarks.servers import Servers
from benchmarks.spread import Spread, ratio_in_rounds

TITLE = "One run at a time"
REST_SECONDS = 0.02
# The box that takes the place of the used one is started then, and a Node takes so long.
NODE_REST_SECONDS = 0.2
# Of what takes milliseconds, in each round; of what takes longer, one.
SAMPLES = 3

PYTHON_WARM = "agentbox, Python API, warm"
PYTHON_ON_DEMAND = "agentbox, Python API, on demand"
PYTHON_COLD = "agentbox, Python API, cold"
HTTP_WARM = "agentbox, POST /v1/run, warm"
HTTP_POLICY = "agentbox, POST /v1/run, warm, policy and trace"
NODE_WARM = "agentbox, node, warm"
DOCKER_RUNC = "docker run --rm, runc"
DOCKER_TO_HTTP = f"{DOCKER_RUNC}, to {HTTP_WARM}"
NOTE = (
    "Milliseconds of one run that prints 1, as its caller sees them; after each call the machine rests for 20 ms, and "
    "for 200 after a warm Node. Warm: a server with its defaults; on demand: its pool has a warm interpreter and no "
    "boxes; cold: it has no pool. Behind a case stands what its runs say of themselves: how many percent began so, "
    "median milliseconds until the program ran (start) and until it had ended (run). HTTP is on one connection that is "
    "kept open. Containers have no network."
)

Call = Callable[[], float]


class Tallied:
    """A call of ours that keeps what its runs say of themselves: how they began, and where their time went."""

    def __init__(self, call: Callable[[], tuple[float, Mapping[str, Any]]]) -> None:
        self._call = call
        self._timings: list[Mapping[str, Any]] = []

    def __call__(self) -> float:
        """Milliseconds."""
        taken, timings = self._call()
        self._timings.append(timings)
        return taken

    def figures(self) -> dict[str, float]:
        """How many percent began in which way; median milliseconds until the program ran, and of the program."""
        said = [timings for timings in self._timings if "start" in timings]
        starts = Counter(timings["start"] for timings in said)
        found = {f"% {start}": count * 100 / starts.total() for start, count in starts.most_common()}
        for part in ("start_ms", "run_ms") if said else ():
            found[part.replace("_", " ")] = statistics.median(timings[part] for timings in said)
        return found


def measure(options: Options) -> Section:
    """All of it in one interleaved run."""
    with ExitStack() as stack:
        wishes = list(_wishes(stack, Servers(stack)))
        made, rows = prepared(wishes)
        cases = [
            Case(wish.name, call, wish.samples, NODE_REST_SECONDS if wish.name == NODE_WARM else REST_SECONDS)
            for wish, call in made
        ]
        taken = interleave(cases, options.rounds_or(40, 2), warm_up=not options.quick)
    for wish, call in made:
        if wish.name in taken.failed:
            rows[wish.name] = unmeasured(wish.name, taken.failed[wish.name], wish.ours)
            continue
        rounds = taken.rounds[wish.name]
        ratio = ratio_in_rounds(rounds, taken.rounds[BASELINE])
        extra = call.figures() if isinstance(call, Tallied) else {}
        rows[wish.name] = Row(wish.name, Spread.of_rounds(rounds), ratio=ratio, extra=extra)
    if DOCKER_RUNC in taken.rounds and HTTP_WARM in taken.rounds:
        ratio = ratio_in_rounds(taken.rounds[DOCKER_RUNC], taken.rounds[HTTP_WARM])
        compared = Row(DOCKER_TO_HTTP, ratio=ratio, against=HTTP_WARM)
    else:
        compared = Row(DOCKER_TO_HTTP, missing="needs both rows")
    return Section("runs", TITLE, BASELINE, (*(rows[wish.name] for wish in wishes), compared), (NOTE,))


def _wishes(stack: ExitStack, servers: Servers) -> Iterator[Wish[Call]]:
    yield Wish("/bin/true", partial(spawning, ["/bin/true"], b""), True, SAMPLES)
    isolated = [PYTHON, "-I", "-S", "-c", PROGRAM]
    yield Wish("python3 -I -S -c", partial(spawning, isolated, OUTPUT), True, SAMPLES)
    yield Wish(BASELINE, partial(spawning, [PYTHON, "-c", PROGRAM], OUTPUT), True, SAMPLES)
    yield Wish("node -e", lambda: spawning([program("node", "nodejs"), "-e", "console.log(1)"]))
    yield from _ours(stack, servers)
    yield Wish("bwrap --unshare-all, python3 -c", rivals.bubblewrap)
    yield Wish("nsjail, python3 -c", rivals.nsjail)
    yield Wish("sandlock, python3 -c", partial(rivals.sandlock, stack))
    yield Wish(DOCKER_RUNC, partial(_container, servers, "runc"))
    yield Wish("docker run --rm, runsc", partial(_container, servers, "runsc"))
    yield Wish("runsc run", lambda: _runsc(Runsc(stack, servers.image)))
    yield Wish("agentbox-sandbox 0.8, subprocess", partial(_old, servers.old))
    yield Wish("agentbox-sandbox 0.8, docker", partial(_old, servers.old_with_docker))


def _ours(stack: ExitStack, servers: Servers) -> Iterator[Wish[Call]]:
    for name, settings in (
        (PYTHON_WARM, ways.WARM),
        (PYTHON_ON_DEMAND, ways.ON_DEMAND),
        (PYTHON_COLD, ways.COLD),
    ):
        yield Wish(name, partial(_python, stack, settings), True, SAMPLES)
    warm, cold = servers.warm, servers.cold
    yield Wish(HTTP_WARM, partial(_post, warm, ways.BODY), True, SAMPLES)
    yield Wish(HTTP_POLICY, partial(_post, warm, ways.POLICY_BODY), True, SAMPLES)
    yield Wish("agentbox, stream, warm, first output", partial(_stream, warm, first=True), True, SAMPLES)
    yield Wish("agentbox, stream, warm, result", partial(_stream, warm, first=False), True, SAMPLES)
    yield Wish("agentbox, POST /v1/run, cold", partial(_post, cold, ways.BODY), True, SAMPLES)
    yield Wish("agentbox, POST /v1/run, cold, policy and trace", partial(_post, cold, ways.POLICY_BODY), True)
    yield Wish("agentbox, bash, cold", partial(_post, cold, ways.BASH_BODY), True)
    yield Wish(NODE_WARM, partial(_node, warm), True, SAMPLES)
    yield Wish("agentbox, node, cold", partial(_node, cold), True)


def _post(serve: Callable[[], str], body: dict[str, str]) -> Call:
    connection = Connection(serve(), body)
    connection()
    return Tallied(lambda: (connection(), connection.timings()))


def _stream(serve: Callable[[], str], *, first: bool) -> Call:
    connection = Connection(serve(), ways.BODY, stream=True)
    connection()
    return Tallied(lambda: (connection.first() if first else connection(), connection.timings()))


def _node(serve: Callable[[], str]) -> Call:
    program("node", "nodejs")
    return _post(serve, ways.NODE_BODY)


def _python(stack: ExitStack, settings: dict[str, str]) -> Call:
    if settings != ways.COLD:
        ways.need_pool()
    door = ways.PythonDoor(stack, settings)
    door.run(code=PROGRAM)
    ways.settle(door.process.pid)

    def call() -> tuple[float, Mapping[str, Any]]:
        result = door.run(code=PROGRAM)
        return float(result["ms"]), result["timings"]

    return Tallied(call)


def _container(servers: Servers, runtime: str) -> Call:
    docker = servers.docker()
    call = spawning(docker.run(runtime), environment=docker.environment)
    return seen_to_work(call, f"docker run with {runtime}")


def _runsc(runsc: Runsc) -> Call:
    return seen_to_work(lambda: spawning(runsc.run())(), "runsc run")


def _old(serve: Callable[[], str]) -> Call:
    return seen_to_work(Connection(serve(), ways.BODY), "the old service")
