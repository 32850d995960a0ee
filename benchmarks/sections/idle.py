# SPDX-License-Identifier: MIT
"""Idle warm boxes: whether a run takes longer beside many of them, and what each holds in memory."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks import ways
from benchmarks.containers import program
from benchmarks.http_door import Connection
from benchmarks.interleaved import NotHereError, progress, reason
from benchmarks.preparing import unmeasured
from benchmarks.processes import BASELINE, PROGRAM, PYTHON, family, pss_bytes, rss_bytes, spawning
from benchmarks.report import Row, Section, in_order
from benchmarks.sections import Options
from benchmarks.spread import Spread, ratio_in_rounds

TITLE = "Idle warm boxes"
REST_SECONDS = 0.02
EACH_BOX = "memory (PSS) of each idle warm Python box"
EACH_BOX_TAKEN = "memory that each takes from the machine, kernel included"
EACH_NODE = "memory (PSS) of each idle warm Node box"
SERVER = "resident memory of the server's process"
# Less than that is lost in what the machine does meanwhile.
FEW = 90
NODES = 4
PARTS = (1, 10, 100, 1000)
NOTE = (
    "Each part is a server of its own with so many boxes in its pool, one after the other in random order; in a part, "
    f"runs over HTTP and {BASELINE} take turns. Memory of a box is what the largest pool holds more than the smallest, "
    "for each box more."
)


@dataclass(frozen=True, slots=True)
class Part:
    """What one server showed: milliseconds of runs and of the baseline, its processes, and memory in bytes."""

    boxes: int
    runs: list[float]
    base: list[float]
    processes: int
    family_bytes: int
    taken_bytes: int
    server_bytes: int


def beside(boxes: int) -> str:
    """The row of a part."""
    return f"POST /v1/run beside {boxes} idle box{'es' if boxes > 1 else ''}"


def measure(options: Options) -> Section:
    """All parts, as often as there are rounds."""
    sizes = PARTS[:2] if options.quick else PARTS
    parts: dict[int, list[Part]] = {size: [] for size in sizes}
    problems: dict[int, Exception] = {}
    order, shuffle = list(sizes), random.Random(1).shuffle
    try:
        ways.need_pool()
    except NotHereError as error:
        return Section("idle", TITLE, BASELINE, tuple(_without(name, error) for name in _names(sizes)), (NOTE,))
    for number in range(options.rounds_or(3, 1)):
        shuffle(order)
        for size in [size for size in order if size not in problems]:
            progress(f"round {number + 1}: {size} idle boxes")
            try:
                parts[size].append(_part(size, 30 if options.quick else 100))
            except (NotHereError, AssertionError, OSError, RuntimeError) as error:
                problems[size] = error
                del parts[size]
    rows = [
        Row(
            beside(size),
            Spread.of_rounds([part.runs for part in found]),
            ratio=ratio_in_rounds([part.runs for part in found], [part.base for part in found]),
            extra={"processes of the server": max(part.processes for part in found)},
        )
        for size, found in parts.items()
    ]
    rows += [_without(beside(size), error) for size, error in problems.items()]
    rows += [*_memory(parts), _node_memory(options.rounds_or(3, 1))]
    return Section("idle", TITLE, BASELINE, in_order(rows, _names(sizes)), (NOTE,))


def _names(sizes: Sequence[int]) -> list[str]:
    return [*map(beside, sizes), EACH_BOX, EACH_BOX_TAKEN, EACH_NODE, SERVER]


def _without(name: str, error: Exception) -> Row:
    return unmeasured(name, reason(error), not isinstance(error, NotHereError))


def _node_memory(rounds: int) -> Row:
    each = []
    try:
        program("node", "nodejs")
        for _ in range(rounds):
            held = []
            for size in (0, NODES):
                progress(f"{size} idle Node boxes")
                with ExitStack() as stack:
                    server = ways.serve(stack, {ways.SIZE: "0", ways.NODE_SIZE: str(size)})
                    held.append(pss_bytes(ways.settle(server.pid)))
            each.append((held[1] - held[0]) / NODES / 1e6)
    except (NotHereError, AssertionError) as error:
        return _without(EACH_NODE, error)
    return Row(EACH_NODE, Spread.of(each), "MB")


def _memory(measured: dict[int, list[Part]]) -> list[Row]:
    if len(measured) < 2:
        return [Row(name, missing="needs two sizes of pool") for name in (EACH_BOX, EACH_BOX_TAKEN, SERVER)]
    small, large = min(measured), max(measured)
    more = large - small
    pairs = list(zip(measured[small], measured[large], strict=False))
    each = [(big.family_bytes - little.family_bytes) / more / 1e6 for little, big in pairs]
    taken = [(big.taken_bytes - little.taken_bytes) / more / 1e6 for little, big in pairs]
    if more < FEW:
        machine = Row(EACH_BOX_TAKEN, missing=f"needs a pool of more than {FEW}")
    else:
        machine = Row(EACH_BOX_TAKEN, Spread.of(taken), "MB")
    servers = [part.server_bytes / 1e6 for part in measured[small]]
    return [
        Row(EACH_BOX, Spread.of(each), "MB"),
        machine,
        Row(
            SERVER,
            Spread.of(servers),
            "MB",
            extra={
                f"with {size} boxes": statistics.median(part.server_bytes for part in found) / 1e6
                for size, found in measured.items()
                if size != small
            },
        ),
    ]


def _part(size: int, samples: int) -> Part:
    with ExitStack() as stack:
        free = _free_bytes()
        server = ways.serve(stack, {ways.SIZE: str(size), ways.NODE_SIZE: "0"})
        ways.settle(server.pid)
        settled = free - _free_bytes()
        members = family(server.pid)
        held = pss_bytes(members)
        post, bare = Connection(server.url, ways.BODY), spawning([PYTHON, "-c", PROGRAM])
        post()
        runs, base = [], []
        for _ in range(samples):
            runs.append(post())
            time.sleep(REST_SECONDS)
            base.append(bare())
            time.sleep(REST_SECONDS)
        return Part(size, runs, base, len(members), held, settled, rss_bytes(server.pid))


def _free_bytes() -> int:
    with open("/proc/meminfo", encoding="utf-8") as file:
        found = next(line for line in file if line.startswith("MemAvailable:"))
    return int(found.split()[1]) << 10
