# SPDX-License-Identifier: MIT
"""Every round runs every case, in a random order, so that a busy moment of the machine hits all of them alike."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Measured = TypeVar("Measured")


class NotHereError(Exception):
    """Something that is measured where it can be had, and cannot be had here; its text says why."""


@dataclass(frozen=True, slots=True)
class Case(Generic[Measured]):
    """Something to measure: `call` does it once and gives what was measured, `samples` times in each round.

    The machine is left alone afterwards for `rest_seconds`, so that what the call left to be done in the background is
    not paid by the next case.
    """

    name: str
    call: Callable[[], Measured]
    samples: int = 1
    rest_seconds: float = 0.0


@dataclass(slots=True)
class Taken(Generic[Measured]):
    """`rounds` are what each case gave in each round; `failed` says why a case has none."""

    rounds: dict[str, list[list[Measured]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def interleave(cases: Sequence[Case[Measured]], rounds: int, *, warm_up: bool = True, seed: int = 1) -> Taken[Measured]:
    """Measure all cases in `rounds` rounds, after one that is thrown away when `warm_up`. One that fails is left out
    from there on, and the others go on.
    """
    taken: Taken[Measured] = Taken({case.name: [] for case in cases})
    shuffle = random.Random(seed).shuffle
    going = {case.name: case for case in cases}
    for number in range(0 if warm_up else 1, rounds + 1):
        progress(f"round {number} of {rounds}")
        calls = [case.name for case in going.values() for _ in range(case.samples)]
        shuffle(calls)
        found: dict[str, list[Measured]] = {name: [] for name in going}
        for name in calls:
            if name not in going:
                continue
            try:
                found[name].append(going[name].call())
            except Exception as error:
                taken.failed[name] = reason(error)
                del going[name]
            if name in going and going[name].rest_seconds:
                time.sleep(going[name].rest_seconds)
        if number:
            for name in going:
                taken.rounds[name].append(found[name])
    progress("")
    for name in taken.failed:
        del taken.rounds[name]
    return taken


def reason(error: BaseException) -> str:
    """One line that says what went wrong."""
    text = " ".join(str(error).split())
    return (text if isinstance(error, NotHereError) and text else f"{type(error).__name__}: {text}")[:200]


def progress(text: str) -> None:
    """Say on stderr what is being done: in place on a terminal, else a line for each."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
    elif text:
        sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
