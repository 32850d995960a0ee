# SPDX-License-Identifier: MIT
"""The old HTTP service, agentbox-sandbox 0.8, from a virtual environment of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import httpx

from benchmarks.interleaved import NotHereError
from benchmarks.processes import PYTHON
from benchmarks.ways import old_python
from tests.running_server import clean_environment

START_SECONDS = 30.0
VARIABLE = "AGENTBOX_BENCH_S1_PYTHON"


def serve_old(stack: ExitStack, settings: Mapping[str, str]) -> str:
    """The address of a service with these settings, until the stack is closed; NotHereError when it does not start."""
    python = old_python(VARIABLE, "agentbox-sandbox 0.8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    state = stack.enter_context(tempfile.TemporaryDirectory(prefix="agentbox-bench-s1-"))
    # It runs code with the first python3 on its PATH; all rows must use the same one.
    environment = {"AGENTBOX_SNAPSHOT_DIR": state, "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}", **settings}
    process = subprocess.Popen(
        [str(Path(python).parent / "agentbox"), "serve", "--host", "127.0.0.1", "--port", str(port)],
        env={name: value for name, value in clean_environment(environment).items() if name != "PYTHONPATH"},
        cwd=state,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                return url
        except httpx.TransportError:
            time.sleep(0.05)
    raise NotHereError("the old service did not start")
