# SPDX-License-Identifier: MIT
"""How the gateways of one process share what it may have open, so that no box starves another.

A connection takes two descriptors of the process. Half of all connections belong to nobody but are kept apart, an equal
number for each box that may run at a time. The other half is common, and a box may take from it only while it holds
less of it than is still free: one greedy box gets half of it, two get a third each, and some of it is always left.
"""

from __future__ import annotations

import resource

# For everything else that the process has open.
SPARE_DESCRIPTORS = 512
# Of the rest two parts are for connections, and one for what the boxes themselves need.
_DESCRIPTORS_EACH = 3
_LEAST = 16


class Budget:
    """Connections that all boxes of a process may have open together."""

    def __init__(self, connections: int, boxes: int) -> None:
        """`boxes` may run at a time; more than that share what the others leave."""
        self.reserved = connections if boxes == 1 else max(1, connections // 2 // boxes)
        self._common = max(0, connections - self.reserved * boxes)
        self._borrowed = 0

    @classmethod
    def of_this_process(cls, boxes: int) -> Budget:
        """What the limit of open files allows now."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(max(_LEAST, (soft - SPARE_DESCRIPTORS) // _DESCRIPTORS_EACH), boxes)

    def share(self) -> Share:
        """That of a new box."""
        return Share(self)

    def lends(self, borrowed: int) -> bool:
        """Whether a box that has borrowed so many may have one more."""
        return borrowed < self._common - self._borrowed

    def borrow(self, change: int) -> None:
        """Count what is taken from the common half, or given back."""
        self._borrowed += change


class Share:
    """What one box holds of a budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._ended = False
        self.held = 0

    @property
    def has_room(self) -> bool:
        """Whether one more connection may be opened."""
        reserved = self._budget.reserved
        return self.held < reserved or self._budget.lends(self.held - reserved)

    def take(self) -> None:
        """A connection was opened."""
        self.held += 1
        if self.held > self._budget.reserved:
            self._budget.borrow(1)

    def give_back(self) -> None:
        """A connection has ended."""
        if self._ended:
            return
        if self.held > self._budget.reserved:
            self._budget.borrow(-1)
        self.held -= 1

    def end(self) -> None:
        """The box has ended: give back everything. May be called twice."""
        if not self._ended:
            self._budget.borrow(-max(0, self.held - self._budget.reserved))
        self._ended = True
