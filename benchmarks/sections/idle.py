# SPDX-License-Identifier: MIT
"""Idle warm boxes: whether a run takes longer beside many of them, and what each holds in memory."""

from __future__ import annotations

import random
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks import ways
from benchmarks.http_door import Connection
from benchmarks.interleaved import NotHereError, progress, reason
from benchmarks.processes import BASELINE, PROGRAM, PYTHON, family, pss_bytes, rss_bytes, spawning
from benchmarks.report import Row, Section
from benchmarks.sections import Options
from benchmarks.spread import Spread, ratio_in_rounds

TITLE = "Idle warm boxes"
GAP_SECONDS = 0.02
EACH_BOX = "memory (PSS) of each idle warm Python box"
EACH_BOX_TAKEN = "memory that each takes from the machine, kernel included"
SERVER = "resident memory of the server's process"
# Less than that is lost in what the machine does meanwhile.
FEW = 90
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
    missing: dict[int, str] = {}
    order, shuffle = list(sizes), random.Random(1).shuffle
    try:
        ways.need_pool()
    except NotHereError as error:
        missing = dict.fromkeys(sizes, reason(error))
    for number in range(options.rounds_or(3, 1)):
        shuffle(order)
        for size in [size for size in order if size not in missing]:
            progress(f"round {number + 1}: {size} idle boxes")
            try:
                parts[size].append(_part(size, 30 if options.quick else 100))
            except (NotHereError, AssertionError) as error:
                missing[size] = reason(error)
    rows = [
        Row(
            beside(size),
            Spread.of_rounds([part.runs for part in found]),
            ratio=ratio_in_rounds([part.runs for part in found], [part.base for part in found]),
            extra={"processes of the server": max(part.processes for part in found)},
        )
        for size, found in parts.items()
        if found
    ]
    rows += [Row(beside(size), missing=why) for size, why in missing.items()]
    return Section("idle", TITLE, BASELINE, (*rows, *_memory(parts, missing)), (NOTE,))


def _memory(parts: dict[int, list[Part]], missing: dict[int, str]) -> list[Row]:
    measured = {size: found for size, found in parts.items() if found}
    if len(measured) < 2:
        why = next(iter(missing.values()), "needs two sizes of pool")
        return [Row(name, unit="MB", missing=why) for name in (EACH_BOX, EACH_BOX_TAKEN, SERVER)]
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
        server = ways.serve(stack, {ways.SIZE: str(size)})
        ways.settle(server.pid)
        settled = free - _free_bytes()
        members = family(server.pid)
        held = pss_bytes(members)
        post, bare = Connection(server.url, ways.BODY), spawning([PYTHON, "-c", PROGRAM])
        post()
        runs, base = [], []
        for _ in range(samples):
            runs.append(post())
            time.sleep(GAP_SECONDS)
            base.append(bare())
            time.sleep(GAP_SECONDS)
        return Part(size, runs, base, len(members), held, settled, rss_bytes(server.pid))


def _free_bytes() -> int:
    with open("/proc/meminfo", encoding="utf-8") as file:
        found = next(line for line in file if line.startswith("MemAvailable:"))
    return int(found.split()[1]) << 10
