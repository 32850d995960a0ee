# SPDX-License-Identifier: MIT
"""The ways in which agentbox can have a box for a run, as settings; servers and Python programs that use them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

from agentbox.config import Settings, env_name
from benchmarks.interleaved import NotHereError
from benchmarks.processes import PROGRAM, PYTHON, family
from tests.running_server import RunningServer, clean_environment, launch

BODY = {"code": PROGRAM}
NODE_BODY = {"code": "console.log(1)", "language": "node"}
BASH_BODY = {"code": "echo 1", "language": "bash"}
# A policy that lets the program do what it does, with its guard, its exec judge and a signed trace.
POLICY_BODY = {"code": PROGRAM, "policy": "read: .\nwrite: ./out\nlimits: memory_mb=200\n"}
ALWAYS = {"AGENTBOX_PYTHON": PYTHON}
SIZE = "AGENTBOX_POOL_SIZE"
NODE_SIZE = "AGENTBOX_POOL_NODE_SIZE"
# No pool; a warm interpreter that forks into a new box when a run comes; boxes in stock, as many as by default.
COLD = {"AGENTBOX_POOL": "0"}
ON_DEMAND = {SIZE: "0"}
WARM: dict[str, str] = {}
SETTLED_SECONDS = 1.0
SETTLE_LIMIT_SECONDS = 180.0


def need_pool() -> None:
    """NotHereError where this agentbox has no warm pool."""
    if SIZE not in {env_name(f.name) for f in fields(Settings)}:
        raise NotHereError(f"this agentbox has no setting {SIZE}")


def serve(stack: ExitStack, settings: Mapping[str, str], arguments: tuple[str, ...] = ()) -> RunningServer:
    """A server with these settings, until the stack is closed."""
    state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentbox-bench-")))
    server = launch(state, arguments, {**ALWAYS, **settings})
    stack.callback(server.stop)
    return server


def settle(pid: int) -> list[int]:
    """Wait until a server starts and ends no more processes, as when its pool is full; its processes then."""
    deadline = time.monotonic() + SETTLE_LIMIT_SECONDS
    seen, since = family(pid), time.monotonic()
    while time.monotonic() - since < SETTLED_SECONDS:
        if time.monotonic() > deadline:
            raise NotHereError(f"the pool was not full after {SETTLE_LIMIT_SECONDS:.0f} seconds")
        time.sleep(0.05)
        now = family(pid)
        if now != seen:
            seen, since = now, time.monotonic()
    return seen


class PythonDoor:
    """A Python program that runs code in boxes through the package, asked one run at a time; it measures by itself."""

    def __init__(self, stack: ExitStack, settings: Mapping[str, str]) -> None:
        state = stack.enter_context(tempfile.TemporaryDirectory(prefix="agentbox-bench-"))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.python_door"],
            env=clean_environment({"AGENTBOX_STATE_DIR": state, **ALWAYS, **settings}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(self._end)
        self._read()

    def run(self, **request: str) -> dict[str, Any]:
        """`ms` of a run as its caller saw it, and the result's `timings`."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"benchmarks.python_door ended with {self.process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def _end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def old_python(name: str, what: str) -> str:
    """The Python of a rival's own virtual environment, as the variable says; NotHereError when it is not there."""
    python = os.environ.get(name, "")
    if not python or not Path(python).exists():
        raise NotHereError(f"{name} does not name the Python of {what}")
    return python
