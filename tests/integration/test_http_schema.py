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

from tests.running_server import RunningServer

CONFIGURATION = Path(__file__).parents[2] / "schemathesis.toml"
EXAMPLES = os.environ.get("AGENTBOX_TEST_SCHEMA_EXAMPLES", "60")
TOKEN = "k" * 40
SECONDS = 900

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed"
)


# One thread sends the requests: with two, CPython 3.11 can lose count of the depth of its parser, which they share.
def generated(server: RunningServer, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIGURATION), "run"),
            f"{server.url}/openapi.json",
            *("--checks", "all", "--seed", "20260101", "--no-color", "--generation-database", "none"),
            *arguments,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.parametrize("phases", ["coverage", "examples,fuzzing,stateful"])
def test_generated_requests_get_documented_answers(
    phases: str, start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    server = start_server(AGENTBOX_ALLOWED_HOSTS="box.example")
    ran = generated(server, tmp_path, "--phases", phases, "--max-examples", EXAMPLES)
    assert ran.returncode == 0, ran.stdout[-8000:]
    assert not any("Traceback" in line for line in server.lines)


def test_generated_requests_without_the_key_are_refused(
    start_server: Callable[..., RunningServer], tmp_path: Path
) -> None:
    server = start_server(AGENTBOX_TOKEN=TOKEN)
    header = ("--header", f"Authorization: Bearer {TOKEN}")
    ran = generated(server, tmp_path, "--phases", "examples,fuzzing", "--max-examples", "20", *header)
    assert ran.returncode == 0, ran.stdout[-8000:]
