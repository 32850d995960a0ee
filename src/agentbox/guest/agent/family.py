# SPDX-License-Identifier: MIT
"""Which processes belong to which command."""

from __future__ import annotations

import os
import signal
import time

from .commands import Command
from .processes import census, descendants, may_belong, signal_all


class Family:
    """Of the commands of one agent."""

    def __init__(self, commands: dict[int, Command], *, subreaping: bool) -> None:
        self._commands = commands
        self._subreaping = subreaping

    def of(self, command: Command) -> list[int]:
        """PIDs of a command: all below its keeper, and what dead keepers left."""
        parents = census()
        if parents is None:
            return []
        keepers = {one.keeper for one in self._commands.values() if not one.keeper_gone}
        orphans = [
            pid
            for pid, parent in parents.items()
            if pid not in keepers and self._is_orphan(pid, parent) and (self._subreaping or may_belong(pid, command.id))
        ]
        roots = list(orphans)
        own = []
        if not command.keeper_gone:
            roots.append(command.keeper)
            if command.own and command.keeper in parents:
                own.append(command.keeper)
        return [*own, *orphans, *descendants(parents, roots)]

    def _is_orphan(self, pid: int, parent: int) -> bool:
        """Whether it is what a dead keeper, or where the kernel has no subreapers any parent, left."""
        return pid not in (1, os.getpid()) and (parent == os.getpid() or (not self._subreaping and parent == 1))

    def end(self, seconds: float) -> None:
        """Kill everything below the agent, for so long at most."""
        until = time.monotonic() + seconds
        users = {(command.uid, command.gid) for command in self._commands.values()} or {(0, 0)}
        while time.monotonic() < until:
            for number in (signal.SIGSTOP, signal.SIGKILL):
                parents = census() or {}
                orphans = [] if self._subreaping else [one for one in parents if self._is_orphan(one, parents[one])]
                living = [*orphans, *descendants(parents, [os.getpid(), *orphans])]
                for uid, gid in users:
                    signal_all(living, number, uid, gid)
            if not living:
                return
            time.sleep(0.001)
