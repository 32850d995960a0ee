# SPDX-License-Identifier: MIT
"""Sandboxes paused, restarted, forked, kept and restored at random, held against a model of their files."""

from __future__ import annotations

import os
from pathlib import Path

from agentbox import Sandbox
from agentbox.errors import AgentboxError
from tests.soak.section import Found, Options
from tests.state_cycles import Cycles

_CYCLES = 200
_CYCLES_ELSEWHERE = 40
_OFTEN = "jail"


def work(options: Options, found: Found) -> None:
    """200 cycles in the jail, 40 in each other backend."""
    for backend in options.backends:

        def make(backend: str = backend, **how: object) -> Sandbox:
            sandbox = Sandbox(backend=backend, memory="512m", **how)  # type: ignore[arg-type]
            sandbox.start()
            return sandbox

        count = options.of(_CYCLES if backend == _OFTEN else _CYCLES_ELSEWHERE)
        try:
            cycles = Cycles(make, options.seed)
            try:
                cycles.run(count)
            finally:
                for step, times in cycles.done.items():
                    found.counts[f"{backend} {step}"] += times
        except (AssertionError, AgentboxError, OSError) as error:
            found.fault(f"{backend}: {type(error).__name__}: {error}")
    live = Path(os.environ["AGENTBOX_STATE_DIR"], "volumes", "mounted", "live")
    for left in live.glob("*/*") if live.is_dir() else ():
        found.fault(f"a workspace was left behind: {left}")
