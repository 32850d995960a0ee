# SPDX-License-Identifier: MIT
"""How fast a queue is left, measured while it stands, and how long a caller should stay away."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

REMEMBERED = 64
LONGEST_SECONDS = 300


class Pace:
    """The ends of the last runs since every place was taken. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # The first is the begin of the measurement: the moment when the last place was taken, or an older end.
        self._marks: deque[float] = deque(maxlen=REMEMBERED + 1)

    def begin(self) -> None:
        """Every place is taken now; what was measured before says nothing about this crowd."""
        self._marks.clear()
        self._marks.append(self._clock())

    def count(self) -> None:
        """A run has ended, and its place is free for another one."""
        self._marks.append(self._clock())

    def seconds_until(self, ends: int) -> int:
        """How long it takes until so many more runs have ended, from 1 to LONGEST_SECONDS."""
        if not self._marks:
            return 1
        # Up to now, not up to the last end: a queue that has come to a halt is a slow one.
        elapsed = self._clock() - self._marks[0]
        expected = ends * elapsed / max(1, len(self._marks) - 1)
        return max(1, min(LONGEST_SECONDS, math.ceil(expected)))
