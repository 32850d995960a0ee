# SPDX-License-Identifier: MIT
"""The parts of `make bench`, in their order. Each module has TITLE and `measure(options) -> Section`."""

from __future__ import annotations

from dataclasses import dataclass

NAMES = (
    "runs",
    "load",
    "idle",
    "start",
    "policy",
    "traces",
    "replays",
    "checkpoints",
    "egress",
    "attachments",
    "sandbox",
    "states",
    "served",
)


@dataclass(frozen=True, slots=True)
class Options:
    """`rounds` None is the section's own number; `quick` measures less, to see that everything works."""

    rounds: int | None = None
    quick: bool = False

    def rounds_or(self, usual: int, quick: int) -> int:
        """The number of rounds."""
        return self.rounds if self.rounds is not None else quick if self.quick else usual
