# SPDX-License-Identifier: MIT
"""Running the real command line as a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.running_server import clean_environment


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    exit_code: int
    stdout: str
    stderr: str


def agentbox(
    *arguments: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None, timeout: float = 300.0
) -> Finished:
    """Run `agentbox` with these arguments, without settings of the surrounding environment."""
    done = subprocess.run(
        [sys.executable, "-m", "agentbox.cli.main", *arguments],
        env=clean_environment(environment or {}),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def assert_is_told_what_to_do(done: Finished, exit_code: int, *words: str) -> None:
    """The command ended with a message and a hint on stderr, and without a traceback."""
    assert done.exit_code == exit_code, done
    assert "Traceback" not in done.stderr, done.stderr
    assert "agentbox: " in done.stderr, done.stderr
    assert "hint: " in done.stderr, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
