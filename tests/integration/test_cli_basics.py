# SPDX-License-Identifier: MIT
"""The command itself: version, help, and what does not get imported for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentbox import __version__
from tests.integration.commands import agentbox
from tests.running_server import clean_environment


def test_version_is_printed_as_click_programs_do() -> None:
    done = agentbox("--version")
    assert (done.exit_code, done.stdout) == (0, f"agentbox, version {__version__}\n")


def test_help_names_every_command() -> None:
    done = agentbox("--help")
    assert done.exit_code == 0
    assert all(f"\n  {name} " in done.stdout for name in ("serve", "health", "doctor"))


@pytest.mark.parametrize(
    "arguments", [(), ("frobnicate",), ("serve", "--bogus"), ("serve", "--port", "99999"), ("serve", "--backend", "x")]
)
def test_wrong_use_ends_with_two_and_says_how_to_get_help(arguments: tuple[str, ...]) -> None:
    done = agentbox(*arguments)
    assert done.exit_code == 2
    assert "Usage: agentbox" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("--help",), ("serve", "--help"), ("health", "--help"), ("doctor", "--help")])
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    code = (
        "import sys, contextlib\n"
        "from agentbox.cli.main import main\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "heavy = {'httpx', 'starlette', 'pydantic', 'uvicorn', 'asyncio', 'ssl', 'agentbox.isolation',"
        " 'agentbox.engine', 'agentbox.server'}\n"
        "sys.exit(', '.join(sorted(heavy & sys.modules.keys())) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=clean_environment({}), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_output_to_a_reader_that_went_away_is_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", '"$0" -m agentbox.cli.main --help | true', sys.executable],
        env=clean_environment({}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
