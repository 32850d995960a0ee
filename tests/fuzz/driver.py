# SPDX-License-Identifier: MIT
"""Feeds a target with mutated inputs for some time; stops at the first one that it cannot stand.

    python -m tests.fuzz [--seconds 300] [--seed N] [NAME ...]      every target, or those named
    python -m tests.fuzz --input FILE NAME                          one input again

An input that a target raises for, or takes too long for, is written to `.fuzz/NAME-HASH` and named.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tests.fuzz.mutation import mutated
from tests.fuzz.target import Target

# Of this process's own time for one input: a parser needs well under a millisecond.
HANG_SECONDS = 10.0
FOUND = Path(".fuzz")
_ALARM_EVERY = 256


class HangError(Exception):
    """A target took too long for one input."""


@dataclass(frozen=True)
class Finding:
    """An input that a target cannot stand, and how it failed."""

    target: str
    data: bytes
    failure: str


def fuzz(target: Target, seconds: float, seed: int) -> tuple[int, Finding | None]:
    """How many inputs were tried within `seconds`, and the first that failed. Every seed is tried, however short the
    time."""
    chance = random.Random(seed)
    tried = 0
    with _hangs_raise():
        for data in target.seeds:
            tried += 1
            finding = attempt(target, data)
            if finding is not None:
                return tried, finding
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            # Armed once for many inputs: a system call for each would be most of the work.
            signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
            for _ in range(_ALARM_EVERY):
                tried += 1
                finding = attempt(target, mutated(chance, target.seeds, target.tokens))
                if finding is not None:
                    return tried, finding
                if time.monotonic() >= until:
                    break
    return tried, None


def attempt(target: Target, data: bytes) -> Finding | None:
    """Give one input to a target."""
    try:
        target.check(data)
    except Exception:
        return Finding(target.name, data, traceback.format_exc())
    return None


@contextmanager
def _hangs_raise() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise HangError(f"no end after {HANG_SECONDS} s of this process's time")

    former = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)


def main(targets: Sequence[Target], arguments: Sequence[str]) -> int:
    """The command line; the exit code is 1 when something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(target.name for target in targets)}")
    parser.add_argument("--seconds", type=float, default=300.0, help="for each target (default: 300)")
    parser.add_argument("--seed", type=int, default=None, help="of the chance; printed, so that a run can be repeated")
    parser.add_argument("--input", type=Path, default=None, help="give this file to the target instead")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - {target.name for target in targets}
    if unknown:
        parser.error(f"no target is named {', '.join(sorted(unknown))}")
    chosen = [target for target in targets if target.name in options.names] if options.names else list(targets)
    if options.input is not None:
        findings = [attempt(target, options.input.read_bytes()) for target in chosen]
        for again in findings:
            print("holds" if again is None else again.failure)
        return int(any(findings))
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    found = False
    for target in chosen:
        tried, finding = fuzz(target, options.seconds, seed)
        print(f"{target.name}: {tried} inputs, seed {seed}: {'holds' if finding is None else 'FAILS'}", flush=True)
        if finding is not None:
            found = True
            FOUND.mkdir(exist_ok=True)
            path = FOUND / f"{target.name}-{hashlib.sha256(finding.data).hexdigest()[:16]}"
            path.write_bytes(finding.data)
            print(f"{finding.failure}\nagain: python -m tests.fuzz --input {path} {target.name}", file=sys.stderr)
    return int(found)
