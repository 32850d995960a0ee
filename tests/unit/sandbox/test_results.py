# SPDX-License-Identifier: MIT
"""The texts that a model reads, which programs written for the older package compare."""

from __future__ import annotations

import pytest

from agentbox.errors import SandboxError
from agentbox.sandbox.results import ShellResult, busy, rejected
from agentbox.sandbox.sizes import megabytes, processors
from agentbox.sandbox.tools import TOOLS, tools


def test_a_completed_command_is_told_with_its_exit_code_and_output() -> None:
    assert ShellResult("a\n", 3).render() == "exit=3\noutput:\na\n"


def test_a_killed_command_is_told_with_the_signal() -> None:
    text = ShellResult("a", 143, "killed", "SIGTERM after 0.3s").render()
    assert text == "killed (exit=143)\n[SIGTERM after 0.3s]\noutput:\na"


def test_a_refused_call_is_an_error_line() -> None:
    assert rejected("no command is currently running").render() == "ERROR: no command is currently running"
    assert busy(4.02).render() == (
        "ERROR: a command has been running for 4.0s. Use shell_wait to keep waiting or shell_kill to stop it before "
        "running something else."
    )


def test_a_running_command_is_told_with_what_is_new() -> None:
    text = ShellResult("abc", None, "running", "", 2.0, 0.1, 3).render()
    assert text.startswith("still running after 2.0s; produced 3 new characters of output\noutput so far:\nabc\n")
    assert "shell_wait" in text
    assert "shell_kill" in text


def test_a_quiet_command_is_told_with_how_long_it_is_quiet() -> None:
    text = ShellResult("", None, "running", "", 9.0, 7.0).render()
    assert text.startswith("still running after 9.0s; no new output for 7.0s\noutput so far:\n(nothing new)\n")


def test_the_tools_have_the_names_and_arguments_of_the_older_package() -> None:
    assert [tool["name"] for tool in TOOLS] == ["shell_exec", "shell_wait", "shell_kill"]
    for tool in TOOLS:
        assert set(tool) == {"name", "description", "input_schema"}
        assert tool["input_schema"]["type"] == "object"
    assert TOOLS[0]["input_schema"]["required"] == ["command"]
    assert {name: one["type"] for name, one in TOOLS[0]["input_schema"]["properties"].items()} == {
        "command": "string",
        "timeout": "integer",
    }


def test_the_tools_come_in_the_forms_of_their_makers() -> None:
    assert tools("openai")[0]["function"]["parameters"] == TOOLS[0]["input_schema"]
    assert tools("openai-responses")[2]["name"] == "shell_kill"
    assert [one["type"] for one in tools("anthropic-builtin")] == ["bash_20250124", "text_editor_20250728"]
    with pytest.raises(SandboxError, match="no form"):
        tools("telegraph")


@pytest.mark.parametrize(
    ("text", "expected"), [("2g", 2048), ("512m", 512), ("1.5G", 1536), (1 << 30, 1024), ("3mib", 3)]
)
def test_sizes_are_read_as_container_users_write_them(text: str | int, expected: int) -> None:
    assert megabytes(text, "memory") == expected


@pytest.mark.parametrize("text", ["", "much", "-1g", "1k", 0])
def test_what_is_no_size_is_an_error_that_names_it(text: str | int) -> None:
    with pytest.raises(SandboxError, match="memory="):
        megabytes(text, "memory")


def test_what_is_no_number_of_processors_is_an_error() -> None:
    assert processors("1.5") == 1.5
    with pytest.raises(SandboxError, match="cpus="):
        processors("many")
