# SPDX-License-Identifier: MIT
"""run(request) -> RunResult: the one place that knows the order of the walk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from agentbox.config import Settings
from agentbox.models import RunRequest, RunResult
from agentbox.workspace.snapshots import SnapshotStore

OutputSink = Callable[[str, bytes], Awaitable[None]]


class Runner:
    """Executes requests until it is closed. Cancel the task that awaits `run` to end that run."""

    settings: Settings
    snapshots: SnapshotStore
    backend_name: str

    @classmethod
    async def start(cls, settings: Settings) -> Runner:
        """Open the backends, sweep what killed predecessors left behind, probe what is enforced here."""
        raise NotImplementedError

    async def close(self) -> None:
        """End every run and remove everything."""
        raise NotImplementedError

    async def run(self, request: RunRequest, on_output: OutputSink | None = None) -> RunResult:
        """Execute one request. `on_output(stream, chunk)` gets 'stdout' or 'stderr' as bytes arrive."""
        raise NotImplementedError
