# SPDX-License-Identifier: MIT
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentbox.errors import ConfigError, UnsupportedLanguageError
from agentbox.isolation.interpreters import ALIASES, INTERPRETERS, _needed, by_language, locate


def test_a_language_is_found_in_any_case_and_by_its_other_name() -> None:
    assert by_language("PYTHON") is INTERPRETERS["python"]
    assert by_language("Node") is INTERPRETERS["javascript"]
    assert set(ALIASES.values()) <= set(INTERPRETERS)


def test_an_unknown_language_is_named_as_it_was_written() -> None:
    with pytest.raises(UnsupportedLanguageError, match=r"^Unsupported language: Ruby$") as raised:
        by_language("Ruby")
    assert "python" in raised.value.hint


def test_an_unknown_language_cannot_forge_a_line_of_a_log() -> None:
    with pytest.raises(UnsupportedLanguageError) as raised:
        by_language("x\r\n\x1b[31m" + "y" * 1000)
    assert raised.value.message.isprintable()
    assert len(raised.value.message) < 100


def test_a_configured_interpreter_that_does_not_exist_is_an_error_that_names_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"AGENTBOX_PYTHON=/nowhere/python"):
        locate(INTERPRETERS["python"], "/nowhere/python")


def test_a_configured_interpreter_that_does_not_work_is_an_error() -> None:
    with pytest.raises(ConfigError, match="cannot be run"):
        locate(INTERPRETERS["python"], "/bin/false")


def test_a_virtual_environment_brings_its_own_directory_and_its_bases(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    found = locate(INTERPRETERS["python"], str(tmp_path / "venv/bin/python"))
    assert found is not None
    assert found.path == str(tmp_path / "venv/bin/python")
    assert any(str(tmp_path / "venv") == directory for directory in found.directories)
    base = os.path.realpath(sys.base_prefix)
    assert base.startswith("/usr") or any(base == d or base.startswith(d + "/") for d in found.directories)


@pytest.mark.parametrize("prefix", ["/", "/home", "/root", "/var", "/etc", "/opt"])
def test_an_interpreter_never_shows_a_whole_private_directory(prefix: str) -> None:
    with pytest.raises(ConfigError, match="shown whole to every box"):
        _needed([prefix], "/some/python")


def test_only_the_outermost_directories_are_shown() -> None:
    assert _needed(["/opt/py/lib", "/opt/py", "/usr/lib/python3", "/srv/env"], "/x") == ("/opt/py", "/srv/env")


def test_node_sizes_its_heap_by_the_box() -> None:
    assert "--max-old-space-size=192" in INTERPRETERS["javascript"].argv("/usr/bin/node", "/w/main.js", 256)
