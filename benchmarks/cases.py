# SPDX-License-Identifier: MIT
"""What is timed. To add a row: a name and a Case in `cases`; what it needs is opened on the given ExitStack."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx

from benchmarks.measure import Case
from benchmarks.traces import trace_cases
from tests.running_server import clean_environment, launch

PYTHON = "/usr/bin/python3"
BASELINE = "python3 -c"
PROGRAM = "print(1)"
START_SECONDS = 30.0


def cases(stack: ExitStack) -> dict[str, Case]:
    """Floors, agentbox over HTTP, the old HTTP service when it is installed, bubblewrap when it is installed."""
    found = {
        "/bin/true": Case(_spawn("/bin/true", output=b"")),
        "python3 -I -S -c": Case(_spawn(PYTHON, "-I", "-S", "-c", PROGRAM)),
        BASELINE: Case(_spawn(PYTHON, "-c", PROGRAM)),
    }
    state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentbox-bench-")))
    server = launch(
        state,
        ("--allow-unisolated",),
        {"AGENTBOX_ALLOWED_BACKENDS": "subprocess,jail", "AGENTBOX_PYTHON": PYTHON},
    )
    stack.callback(server.stop)
    body = {"code": PROGRAM}
    found["agentbox jail, HTTP, 1 caller"] = Case(_post(stack, server.url, body))
    found["agentbox jail, HTTP, 4 callers"] = Case(_post_together(stack, server.url, body, 4), runs=4)
    found["agentbox jail, HTTP, bash"] = Case(_post(stack, server.url, {"code": "echo 1", "language": "bash"}))
    found["agentbox subprocess, HTTP, 1 caller"] = Case(_post(stack, server.url, body | {"backend": "subprocess"}))
    if url := _start_s1(stack, os.environ.get("AGENTBOX_BENCH_S1_PYTHON", "")):
        found["agentbox-sandbox 0.8 subprocess, HTTP, 1 caller"] = Case(_post(stack, url, body))
        found["agentbox-sandbox 0.8 subprocess, HTTP, 4 callers"] = Case(_post_together(stack, url, body, 4), runs=4)
    if bwrap := shutil.which("bwrap"):
        view = ("--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64")
        mounts = ("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp")
        found["bwrap --unshare-all python3 -c"] = Case(
            _spawn(bwrap, "--unshare-all", *view, *mounts, PYTHON, "-c", PROGRAM)
        )
    return found | trace_cases(stack)


def _spawn(*argv: str, output: bytes = b"1\n") -> Callable[[], None]:
    def call() -> None:
        done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, check=True)
        assert done.stdout == output

    return call


def _post(stack: ExitStack, url: str, body: Mapping[str, object]) -> Callable[[], None]:
    """One run on a connection of its own that is kept open."""
    client = stack.enter_context(httpx.Client(base_url=url, timeout=60.0, trust_env=False))

    def call() -> None:
        answer = client.post("/v1/run", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["stdout"] == "1\n", answer.text

    return call


def _post_together(stack: ExitStack, url: str, body: Mapping[str, object], callers: int) -> Callable[[], None]:
    threads = stack.enter_context(ThreadPoolExecutor(callers))
    calls = [_post(stack, url, body) for _ in range(callers)]

    def call() -> None:
        for pending in [threads.submit(one) for one in calls]:
            pending.result()

    return call


def _start_s1(stack: ExitStack, python: str) -> str:
    """Start the old service on a free port; '' when its Python is not there."""
    if not python or not Path(python).exists():
        return ""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    state = stack.enter_context(tempfile.TemporaryDirectory(prefix="agentbox-bench-s1-"))
    # It runs code with the first python3 on its PATH; all rows must use the same one.
    environment = {"AGENTBOX_SNAPSHOT_DIR": state, "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        [str(Path(python).parent / "agentbox"), "serve", "--host", "127.0.0.1", "--port", str(port)],
        env=clean_environment(environment),
        cwd=state,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                return url
        except httpx.TransportError:
            time.sleep(0.05)
    raise RuntimeError("the old service did not start")
