# SPDX-License-Identifier: MIT
"""What the commands that must start fast do not import. A module that is needed later may be imported later."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from agentbox.cli.commands import cli
from tests.conftest import not_here

# Each of these takes at least a tenth of a bare interpreter's start, with what it imports.
HEAVY = frozenset(
    {
        "asyncio", "base64", "click", "collections", "concurrent", "contextlib", "cryptography", "dataclasses", "enum",
        "functools", "hashlib", "httpx", "inspect", "ipaddress", "json", "logging", "pathlib", "platform",
        "random", "re", "secrets", "shutil", "signal", "socket", "ssl", "starlette", "subprocess", "tempfile",
        "threading", "traceback", "typing", "urllib",
    }
)  # fmt: skip

# Everything that a run without network imports until its command has started.
RUN = """
from agentbox.cli import main, front
from agentbox import light
light.choose()
import agentbox.config, agentbox.engine.limits, agentbox.isolation.early, agentbox.engine.policy_world
import agentbox.engine.agent_run, agentbox.engine.agent_session
light.asyncio.run
"""
# Everything that a replay imports until its command has started.
REPLAY = """
from agentbox.cli import main, front, replaying
from agentbox import light
light.choose()
import agentbox.config, agentbox.engine.limits, agentbox.isolation.early, agentbox.engine.policy_world
import agentbox.engine.agent_replay, agentbox.engine.replay_session, agentbox.cli.checking, agentbox.trace.verify
light.asyncio.run
"""
LAUNCHER = "import agentbox.isolation.launcher.serving"


def _imported(program: str) -> set[str]:
    """The modules that are there after a program and not after none, by the first part of their names."""
    shown = "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    found = []
    for text in (program, ""):
        done = subprocess.run(
            [sys.executable, "-c", text + shown], capture_output=True, text=True, check=True, timeout=120
        )
        found.append(set(done.stdout.split()))
    return found[0] - found[1]


@pytest.mark.parametrize("program", [RUN, REPLAY, LAUNCHER], ids=["the runner", "a replay", "the launcher"])
def test_a_command_is_started_without_heavy_modules(program: str) -> None:
    if sys.platform != "linux" and program is LAUNCHER:
        not_here("boxes are Linux's")
    assert _imported(program) & HEAVY == set()


def test_the_words_of_a_run_are_read_without_the_engine() -> None:
    program = "from agentbox.cli.front import read_words\nassert read_words(['-q', '--', 'true'])"
    assert _imported(program) & HEAVY == set()


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["replay", "--help"], ["--version"]], ids=" ".join)
def test_help_needs_click_and_nothing_of_the_engine(words: list[str]) -> None:
    program = f"""
import io, sys
sys.argv = ["agentbox", *{words!r}]
sys.stdout = io.StringIO()
from agentbox.cli.main import main
try:
    main()
except SystemExit as ending:
    assert not ending.code, ending.code
engine = [name for name in sys.modules if name.startswith(("agentbox.engine", "agentbox.isolation", "agentbox.trace"))]
assert not engine, engine
sys.stdout = sys.__stdout__
"""
    assert _imported(program) & {"asyncio", "cryptography", "httpx", "starlette", "ssl", "pydantic"} == set()


def test_the_list_of_commands_says_what_each_of_them_says() -> None:
    context = click.Context(cli)
    shown = cli.get_help(context)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        first = (command.help or "").split("\n\n")[0].replace("\n", " ")
        listed = next(line.split(None, 1)[1] for line in shown.splitlines() if line.startswith(f"  {name} "))
        assert first.startswith(listed.rstrip(".")[:40]), (first, listed)


def test_the_list_of_commands_imports_none_of_them() -> None:
    found = _imported(
        "import agentbox.cli.commands as c, click, sys\nc.cli.get_help(click.Context(c.cli))\n"
        "assert not {f'agentbox.cli.{name}' for name in c.cli.list_commands(None)} & set(sys.modules)"
    )
    assert "click" in found
