# SPDX-License-Identifier: MIT
"""The three ids of a gVisor box on the host: its root, its user, nobody."""

from __future__ import annotations

from agentbox.isolation.facilities import Facilities


class BoxIds:
    """Taken when made, to be given back once."""

    def __init__(self, facilities: Facilities) -> None:
        self._ids = facilities.ids
        self.all = (self._ids.take()[0], self._ids.take()[0], self._ids.take()[0])

    @property
    def user(self) -> int:
        """uid and gid of the box's programs."""
        return self.all[1]

    def give_back(self) -> None:
        """The box is gone. May be called twice."""
        for one in self.all:
            self._ids.give_back(one)
