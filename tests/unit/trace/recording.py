# SPDX-License-Identifier: MIT
"""Traces for the tests, written by the real writer with a key and a ledger of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from agentbox.trace.keys import KeyStore
from agentbox.trace.ledger import Ledger
from agentbox.trace.verdict import Trust, Verdict
from agentbox.trace.verify import verify
from agentbox.trace.writer import Run, TraceWriter

SECOND = 1_000_000_000


class Recording:
    """A directory with a key store, a ledger and traces."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = KeyStore(directory / "keys")
        self.key = self.store.load_or_create()
        self.ledger = Ledger(self.store.ledger_path)
        self._names = itertools.count()

    # A clock that stands still, unless a test brings another: then records alone decide where checkpoints stand.
    def writer(self, run: str = "run-1", **options: object) -> TraceWriter:
        options.setdefault("clock", clock_of(1_796_004_783.0))
        path = self.directory / f"trace{next(self._names)}.jsonl"
        return TraceWriter(path, Run(run, "p" * 64, {"argv": ["x"]}), self.key, self.ledger, **options)  # type: ignore[arg-type]

    def trace(self, effects: int, run: str = "run-1", *, seal: bool = True) -> Path:
        """A trace with that many effects, with a non-ASCII path in the middle."""
        writer = self.writer(run)
        for number in range(effects):
            name = f"data/é{number}" if number == effects // 2 else f"data/{number}"
            writer.append("effect", "fs.read_text", {"path": name}, result=f"text {number}", origin="guest", pid=7)
        writer.append("meta", "run.end", {"returncode": 0})
        if seal:
            writer.seal()
        else:
            writer.flush()
            writer.close()
        return writer.path

    @property
    def trust(self) -> Trust:
        return Trust(self.store.trusted(), self.ledger)

    def verdict(self, path: Path) -> Verdict:
        return verify(path, self.trust)


def clock_of(*seconds: float) -> Callable[[], int]:
    """A clock that shows these times since 1970 one after the other, and the last one for ever."""
    times = iter(seconds)
    last = 0.0

    def now() -> int:
        nonlocal last
        last = next(times, last)
        return int(last * SECOND)

    return now
