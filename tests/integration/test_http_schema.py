# SPDX-License-Identifier: MIT
"""The OpenAPI document is complete and true: a generator of requests finds no answer that it does not describe."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.running_server import RunningServer

CONFIGURATION = REPOSITORY / "schemathesis.toml"
# `make fuzz-http` sets it.
LONG = os.environ.get("AGENTBOX_TEST_SCHEMA_EXAMPLES")
# The seed is fixed: every day asks the same, so that few of each kind are enough.
EXAMPLES = LONG or "10"
TOKEN = "k" * 40
SECONDS = 7200 if LONG else 900
ALL = "coverage,examples,fuzzing,stateful"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed"
)


# Sandboxes have a test of their own.
# Asked in long runs while there is a command for them: one that runs, and one that has ended, for which nobody waits.
OF_RUNNING, OF_ENDED = ("list_commands", "write_stdin", "resize_terminal"), ("get_command", "read_output")
RUNS = ("--exclude-path-regex", "^/v1/sandboxes")


# One thread sends the requests: with two, CPython 3.11 can lose count of the depth of its parser, which they share.
def generated(
    server: RunningServer, tmp_path: Path, *arguments: str, configuration: Path = CONFIGURATION
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(configuration), "run"),
            f"{server.url}/openapi.json",
            *("--checks", "all", "--seed", "20260101", "--no-color", "--generation-database", "none"),
            *arguments,
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "SCHEMATHESIS_HOOKS": "tests.schema_hooks",
            "PYTHONPATH": str(REPOSITORY),
            # What it computes of Unicode is kept, and takes seconds.
            "HYPOTHESIS_STORAGE_DIRECTORY": str(REPOSITORY / ".hypothesis"),
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_generated_requests_get_documented_answers(start_server: Callable[..., RunningServer], tmp_path: Path) -> None:
    server = start_server(AGENTBOX_ALLOWED_HOSTS="box.example")
    ran = generated(server, tmp_path, "--phases", ALL, "--max-examples", EXAMPLES, *RUNS)
    assert ran.returncode == 0, ran.stdout[-8000:]
    assert not any("Traceback" in line for line in server.lines)


def test_generated_requests_without_the_key_are_refused(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    server = start_server(AGENTBOX_TOKEN=TOKEN)
    header = ("--header", f"Authorization: Bearer {TOKEN}")
    ran = generated(server, tmp_path, "--phases", "examples,fuzzing", "--max-examples", "3", *header, *RUNS)
    assert ran.returncode == 0, ran.stdout[-8000:]


def test_generated_requests_about_a_sandbox_get_documented_answers(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    server = start_server(AGENTBOX_MAX_SANDBOXES="3", AGENTBOX_POOL="0", AGENTBOX_KEEPER_LINGER_SECONDS="0")
    with server.client() as client:
        sandbox = client.post("/v1/sandboxes", json={"disk_mb": 256}).json()["id"]
        asked = {"command": "echo hi; sleep 3600", "open_stdin": True}
        command = client.post(f"/v1/sandboxes/{sandbox}/commands", json=asked).json()["id"]
        ended = client.post(f"/v1/sandboxes/{sandbox}/exec", json={"command": "echo hi"}).json()["id"]
    slow = ("--suppress-health-check", "too_slow")
    if LONG:
        # What ends commands, and starts so many others that these are forgotten, comes afterwards.
        for names, known in ((OF_RUNNING, command), (OF_ENDED, ended)):
            chosen = [word for name in names for word in ("--include-operation-id", name)]
            asked_for = ("--phases", "coverage,examples,fuzzing", "--max-examples", LONG, *chosen, *slow)
            ran = generated(server, tmp_path, *asked_for, configuration=_knowing(tmp_path, sandbox, known))
            assert ran.returncode == 0, ran.stdout[-8000:]
    others = ("--include-path-regex", "^/v1/sandboxes", "--exclude-operation-id", "delete_sandbox", *slow)
    asked_for = ("--phases", "coverage,examples,fuzzing" if LONG else "fuzzing", "--max-examples", LONG or "2", *others)
    ran = generated(server, tmp_path, *asked_for, configuration=_knowing(tmp_path, sandbox, ended if LONG else command))
    assert ran.returncode == 0, ran.stdout[-8000:]
    if LONG:
        # Here commands are those of the requests before.
        asked_for = ("--phases", "stateful", "--max-examples", LONG, *others)
        ran = generated(server, tmp_path, *asked_for, configuration=_knowing(tmp_path, sandbox))
        assert ran.returncode == 0, ran.stdout[-8000:]
    log = (server.state_dir / "keeper.log").read_text()
    assert "Traceback" not in log, log[-8000:]
    assert not any("Traceback" in line for line in server.lines)


def _knowing(tmp_path: Path, sandbox: str, command: str = "") -> Path:
    """The configuration, with the ids of what there is."""
    configuration = tmp_path / "schemathesis.toml"
    known = f'[parameters]\nsandbox_id = "{sandbox}"\n' + (f'command_id = "{command}"\n' if command else "")
    # Tables come after plain settings.
    configuration.write_text(CONFIGURATION.read_text().replace("\n[[operations]]", f"\n{known}\n[[operations]]", 1))
    return configuration
