# SPDX-License-Identifier: MIT
"""What a command needs to see of the host to start at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentbox.engine.command_view import look_at
from agentbox.errors import InvalidRequestError
from agentbox.models import ProgramRule

PATH = "/usr/bin:/bin"


@pytest.mark.parametrize("name", ["no-such-program", "./text", "directory/"])
def test_what_is_no_program_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "text").write_text("x")
    (tmp_path / "directory").mkdir()
    with pytest.raises(InvalidRequestError):
        look_at([name], str(tmp_path), PATH)


def test_programs_of_the_system_need_nothing_more(tmp_path: Path) -> None:
    view = look_at(["sh", "-c", "true"], str(tmp_path), PATH)
    assert (view.kind, view.shown, view.arguments) == ("shell", (), ("-c", "true"))


def test_a_script_brings_the_modules_beside_it_and_nothing_else(tmp_path: Path) -> None:
    for name in ("agent.py", "tool.py", ".hidden.py", "notes.txt", "package/__init__.py", "data/x.csv"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    (tmp_path / "leads.py").symlink_to("/etc/passwd")
    shown = look_at(["python3", "-X", "dev", "agent.py", "-c"], str(tmp_path), PATH).shown
    assert {Path(path).name for path in shown} == {"agent.py", "tool.py", "package"}


def test_code_on_the_command_line_is_no_script(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("")
    assert look_at(["python3", "-c", "agent.py"], str(tmp_path), PATH).shown == ()


def test_programs_that_rules_allow_are_shown(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    rules = [
        ProgramRule(False, str(tool), (str(tool),), (), "exec"),
        ProgramRule(False, "/usr/bin/env", ("env",), (), "exec"),
        ProgramRule(True, "/opt/denied", ("denied",), (), "deny"),
    ]
    view = look_at(["sh"], str(tmp_path), PATH).with_programs([rules], PATH)
    assert view.shown == (str(tool),)
