# SPDX-License-Identifier: MIT
"""A real `agentbox serve` process on a free port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

START_SECONDS = 60.0
STOP_SECONDS = 30.0
# Sandboxes that a test leaves end soon after its server.
KEEPER = {"AGENTBOX_KEEPER_LINGER_SECONDS": "3"}
_LISTENING = re.compile(r"listening on (http://\S+)")


@dataclass
class RunningServer:
    """`url` has no slash at its end; `lines` are what the server has said on stderr so far."""

    process: subprocess.Popen[str]
    state_dir: Path
    url: str = ""
    lines: list[str] = field(default_factory=list)
    _listening: threading.Event = field(default_factory=threading.Event)

    @property
    def pid(self) -> int:
        return self.process.pid

    def client(self, **options: object) -> httpx.Client:
        """An HTTP client with the server as its base."""
        return httpx.Client(base_url=self.url, timeout=120.0, **options)  # type: ignore[arg-type]

    def ask_to_stop(self, signal_number: int = signal.SIGTERM) -> None:
        """Send a signal to a server that runs, and do not wait."""
        if self.process.poll() is None:
            self.process.send_signal(signal_number)

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        """Ask the server to stop, wait for it, and return its exit code; killed when it takes too long."""
        self.ask_to_stop(signal_number)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(STOP_SECONDS)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if found := _LISTENING.search(line):
                self.url = found[1]
                self._listening.set()
        self._listening.set()


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process without agentbox's settings, and with `extra`."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AGENTBOX_")} | dict(extra)


def launch(
    state_dir: Path,
    arguments: tuple[str, ...],
    environment: Mapping[str, str],
    command: Sequence[str] = (sys.executable,),
) -> RunningServer:
    """Start a server on a free port of 127.0.0.1 and wait until it answers; fails with its own words otherwise.

    `command` is the interpreter with whatever starts it, such as setpriv; it must keep its process id.
    """
    process = subprocess.Popen(
        [*command, "-m", "agentbox.cli.main", "serve", "--port", "0", *arguments],
        env=clean_environment({"AGENTBOX_STATE_DIR": str(state_dir), **KEEPER, **environment}),
        cwd=state_dir,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    server = RunningServer(process, state_dir)
    threading.Thread(target=server._read, daemon=True).start()
    server._listening.wait(START_SECONDS)
    deadline = time.monotonic() + START_SECONDS
    while server.url and process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{server.url}/health", timeout=5.0).status_code == 200:
                return server
        except httpx.TransportError:
            time.sleep(0.02)
    server.stop()
    raise AssertionError("the server did not start:\n" + "\n".join(server.lines))
