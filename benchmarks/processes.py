# SPDX-License-Identifier: MIT
"""Programs that are started and timed, and what a family of processes holds in memory."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.interleaved import NotHereError

PYTHON = "/usr/bin/python3"
PROGRAM = "print(1)"
OUTPUT = b"1\n"
BASELINE = "python3 -c"
LIMIT_SECONDS = 60.0


def spawning(
    argv: Sequence[str], output: bytes = OUTPUT, environment: Mapping[str, str] | None = None
) -> Callable[[], float]:
    """A call that starts a program, reads its output to the end, waits for it, and gives the milliseconds of that.

    It raises RuntimeError when the output is another, and after a minute, when it kills the program.
    """
    environ = dict(os.environ if environment is None else environment)

    def call() -> float:
        begin = time.perf_counter()
        said, status = _spawn(argv, environ)
        elapsed = (time.perf_counter() - begin) * 1000
        if status or said != output:
            raise RuntimeError(f"{argv[0]} ended with {status} and said {said[-300:]!r}")
        return elapsed

    return call


def _spawn(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[bytes, int]:
    read, write = os.pipe()
    try:
        null = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        pid = os.posix_spawnp(argv[0], list(argv), environ, file_actions=[null, (os.POSIX_SPAWN_DUP2, write, 1)])
        os.close(write)
        write = -1
        said, ended, deadline = b"", False, time.monotonic() + LIMIT_SECONDS
        while not ended and select.select([read], [], [], max(0.0, deadline - time.monotonic()))[0]:
            piece = os.read(read, 65536)
            said, ended = said + piece, not piece
        if not ended:
            os.kill(pid, 9)
        status = os.waitpid(pid, 0)[1]
        return said, os.waitstatus_to_exitcode(status)
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)


def seen_to_work(call: Callable[[], float], of: str) -> Callable[[], float]:
    """The same call, once it has succeeded; NotHereError when it does not."""
    try:
        call()
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        raise NotHereError(f"{of} does not run here: {error}") from error
    return call


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for member in found:
        found += children.get(member, [])
    return found


def pss_bytes(pids: Sequence[int]) -> int:
    """Proportional set size of all together; one that has ended counts nothing."""
    return sum(_field(f"/proc/{pid}/smaps_rollup", "Pss") for pid in pids)


def rss_bytes(pid: int) -> int:
    """Resident set size of one process."""
    return _field(f"/proc/{pid}/status", "VmRSS")


def _field(path: str, name: str) -> int:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(f"{name}:"):
                    return int(line.split()[1]) << 10
    except (OSError, ProcessLookupError):
        pass
    return 0
