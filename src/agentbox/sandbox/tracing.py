# SPDX-License-Identifier: MIT
"""The trace of one sandbox, from before its box is built until it is sealed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import agentbox
from agentbox.engine.startup_files import StartupFiles
from agentbox.isolation.durable import WORKSPACE
from agentbox.models import Limits
from agentbox.records import asdict
from agentbox.sandbox.recording import Recording
from agentbox.sandbox.trace_files import TraceFile, make_room, trace_file
from agentbox.trace.background import Subject, TraceLog
from agentbox.trace.keys import KeyStore

if TYPE_CHECKING:
    from agentbox.config import Settings
    from agentbox.errors import TraceError
    from agentbox.models import Enforcement
    from agentbox.sandbox.holding import Holding
    from agentbox.sandbox.options import SandboxOptions
    from agentbox.sandbox.state import Place

_log = logging.getLogger("agentbox.sandbox")


class Tracing:
    """`recording` is what is told to; it is another one each time the sandbox begins. `expire` ends the box with a
    reason: a sandbox whose trace was asked for must not go on without."""

    def __init__(self, expire: Callable[[str], Awaitable[None]]) -> None:
        self.recording = Recording()
        self._expire = expire
        self._file: TraceFile | None = None
        self._name = ""
        self._workspace = ""
        self._startup_files: StartupFiles | None = None
        self._failing: asyncio.Future[None] | None = None

    async def begin(
        self, options: SandboxOptions, holding: Holding, settings: Settings, place: Place
    ) -> Awaitable[None]:
        """Have it begun; what this gives is to be waited for. Both raise TraceError."""
        state, keys = settings.resolved_state_dir(), KeyStore(settings.trace_key_dir())
        self._name, self._workspace = place.name, str(place.workspace)
        self._file = file = await asyncio.to_thread(trace_file, state, place, options.trace)
        if file is None:
            self.recording = Recording(policy=holding.policy)
            return asyncio.sleep(0)
        if file.kept:
            await asyncio.to_thread(make_room, state, keys)
        if place.kept:
            self._startup_files = await asyncio.to_thread(StartupFiles, [self._workspace])
        details = {"agentbox": agentbox.__version__, "sandbox": place.name, "policy": holding.present}
        loop = asyncio.get_running_loop()

        def failed(error: TraceError) -> None:
            loop.call_soon_threadsafe(self._failed, error)

        log = TraceLog(Subject(file.path, holding.policy_sha256, details), keys, failed)
        self.recording = Recording(log, holding.policy)
        return asyncio.wrap_future(log.open())

    def tell_start(
        self,
        options: SandboxOptions,
        backend: str,
        enforcement: Enforcement,
        env: Mapping[str, str],
        warnings: Sequence[str],
        *,
        kept: bool,
    ) -> None:
        """A box was built, with variables of these names."""
        facts: dict[str, Any] = {
            "backend": backend,
            "image": options.image,
            "user": options.user,
            "workspace": "kept" if kept else "own",
            "limits": {name: getattr(options.limits, name) for name in Limits.__dataclass_fields__},
            "idle_timeout": options.idle_timeout,
            "max_lifetime": options.max_lifetime,
            "enforcement": asdict(enforcement),
            "env": sorted(env),
            "warnings": list(warnings) or None,
        }
        self.record("start", {name: value for name, value in facts.items() if value is not None})

    def record(self, op: str, args: Mapping[str, Any]) -> None:
        """Write `sandbox.OP`, where there is a trace. Does not wait and does not raise; `args` are not changed any
        more."""
        self.recording.note(f"sandbox.{op}", args)

    async def end(self) -> None:
        """Tell what was written to a kept workspace that somebody's tools run later, and seal. The box is gone."""
        startup, self._startup_files = self._startup_files, None
        for one in await asyncio.to_thread(startup.written) if startup is not None else ():
            path = f"{WORKSPACE}{one.path[len(self._workspace) :]}"
            self.recording.note("fs.startup_file", {"path": path, "why": one.why})
        self.record("end", {})
        await self.recording.seal()
        if self.recording.log is not None and self._file is not None and not self._file.kept:
            self.recording.log.forget()

    def _failed(self, error: TraceError) -> None:
        if self._file is not None and self._file.kept:
            self._failing = asyncio.ensure_future(self._expire(f"nothing more can be recorded: {error.message}"))
        else:
            _log.warning("sandbox %s is not recorded any more: %s", self._name, error.message)
