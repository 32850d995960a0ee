# SPDX-License-Identifier: MIT
"""A gVisor box that was built for one run."""

from __future__ import annotations

import asyncio
import os

from agentbox.errors import ConfinementError, IsolationError
from agentbox.isolation import shared_memory
from agentbox.isolation.backend import ENDED, LiveBox
from agentbox.isolation.backends.gvisor.events import EVERYTHING, NO_RULES, PROGRAMS
from agentbox.isolation.backends.gvisor.planning import group_limits
from agentbox.isolation.backends.gvisor.witness import Witness
from agentbox.isolation.boxes import Box

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from agentbox.isolation.boxes import CommandExit
    from agentbox.isolation.plan import WorkspaceView
    from agentbox.models import Confinement

_MIB = 1 << 20


class GvisorLiveBox(LiveBox):
    """What a LiveBox is, but for how its memory is counted, and who sees its programs."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert isinstance(self._box, Box)
        self.gvisor = self._box
        self._on_report: Callable[[dict[str, Any]], None] | None = None
        self._points: Sequence[Mapping[str, Any]] = ()
        self._witness: Witness | None = None

    def is_alive(self) -> bool:
        """Whether programs can be started in it, as far as is known."""
        return self.gvisor.alive

    def lacked_processes(self) -> bool:
        """Whether gVisor could not get another thread of the host's, of which it needs several for each process."""
        try:
            return self._cgroup is not None and self._cgroup.refused_processes() > 0
        except OSError:
            return False

    def give_to(self, confinement: Confinement) -> None:
        """Make a box that waited the one of a run, whose memory and processors may be others than those it was made
        with. Raises ConfinementError."""
        if self._cgroup is not None:
            self._cgroup.set_limits(group_limits(confinement.limits))
        self.count_anew()
        self._confinement = confinement
        self.start_kind = "made"

    def count_anew(self) -> None:
        """Count what is used from now on: what gVisor took to boot is not its program's."""
        if self._cgroup is not None:
            self._cgroup.begin_anew()

    async def be_seen(self, on_report: Callable[[dict[str, Any]], None], *, everything: bool) -> None:
        """Hand on what gVisor's kernel sees: the programs that are started, or also what is opened and connected to. In
        a staged box from `show` on. Raises ConfinementError when gVisor does not tell."""
        self._on_report = on_report
        self._points = EVERYTHING if everything else PROGRAMS
        if not self.gvisor.plan.staged:
            await self._open_witness()

    async def show(self, view: WorkspaceView) -> None:
        """See LiveBox."""
        await super().show(view)
        await self._open_witness()

    async def _open_witness(self) -> None:
        if self._on_report is None:
            return
        self._witness = witness = Witness(self._on_report)
        try:
            await self.gvisor.trace(self._points, witness.theirs.fileno())
        except OSError as error:
            raise ConfinementError(
                f"gVisor reports nothing of this box: {error.strerror}",
                hint="`agentbox doctor` says whether this runsc fits",
                step="trace",
                errno=error.errno or 0,
            ) from error
        finally:
            witness.theirs.close()

    async def start(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, stdio: Sequence[int]
    ) -> asyncio.Future[CommandExit]:
        """See LiveBox."""
        return (await self.start_with_signals(argv, env, cwd, stdio))[1]

    async def start_with_signals(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: str, stdio: Sequence[int]
    ) -> tuple[int, asyncio.Future[CommandExit]]:
        """See LiveBox."""
        key, ended = await super().start_with_signals(argv, env, cwd, stdio)
        self._tell(key, argv)
        return key, ended

    async def start_on_terminal(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        size: tuple[int, int],
        instead: Mapping[int, int] | None = None,
    ) -> tuple[int, asyncio.Future[CommandExit], int]:
        """See LiveBox."""
        key, ended, master = await super().start_on_terminal(argv, env, cwd, size, instead)
        self._tell(key, argv)
        return key, ended, master

    def _check_lives(self, error: OSError) -> None:
        """See LiveBox."""
        if error.errno in ENDED or not self.is_alive():
            raise IsolationError(
                f"the box ended before its program began: {error}",
                hint="nothing has run; try again. If it stays so, this runsc is of a release that does not fit",
            ) from error

    def _tell(self, key: int, argv: Sequence[str]) -> None:
        """Report the program that the owner started itself, which gVisor does not."""
        if self._on_report is not None:
            reason = NO_RULES if self._confinement.policy_sha256 is None else "the command itself"
            found = {"pid": self.gvisor.pid_inside(key), "exe": os.path.realpath(argv[0]), "argv": list(argv)}
            self._on_report({"spawn": {**found, "allowed": True, "reason": reason}})

    async def watch_memory(self) -> None:
        """Kill the box when its programs' memory passes memory_mb. Runs until cancelled."""
        if self._cgroup is not None:
            limit = self._confinement.limits.memory_mb * _MIB
            await shared_memory.watch(self._cgroup, limit, self._file_bytes, self._out_of_memory)

    def _file_bytes(self) -> int | None:
        """What the box's files in memory take; where its workspace is none of them, as much as they may. None once the
        box is gone."""
        if self.workspace_fd < 0:
            return None
        may = self.gvisor.plan.disk_bytes
        found = os.fstatvfs(self.workspace_fd)
        if found.f_blocks * found.f_frsize > may:
            return may
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    def _out_of_memory(self) -> None:
        self._oom = True
        self._box.kill()

    async def judged(self) -> None:
        """See LiveBox."""
        if self._witness is not None:
            await self._witness.finish()

    async def destroy(self) -> None:
        """See LiveBox."""
        try:
            await super().destroy()
        finally:
            if self._witness is not None:
                self._witness.close()
