# SPDX-License-Identifier: MIT
"""The TypeScript package: its types are those of the server, and its tests and examples pass against a real one."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import agentbox
from agentbox.sandbox.tools import TOOLS
from tests import typescript
from tests.docs.render import REPOSITORY
from tests.running_server import RunningServer

KEYS = {"one": "k" * 40, "two": "l" * 40}

pytestmark = pytest.mark.skipif(bool(typescript.missing()), reason=typescript.missing())


@pytest.fixture(scope="module")
def compiled() -> list[Path]:
    return typescript.compile_tests()


@pytest.fixture(scope="module")
def servers(
    server: RunningServer, start_server: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """How the tests find a server with default settings, and a narrow one with two callers."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.touch(mode=0o600)
    file.write_text("".join(f"{name}:{key}\n" for name, key in KEYS.items()))
    narrow = start_server(AGENTBOX_KEY_FILE=str(file), AGENTBOX_MAX_CONCURRENT_RUNS="1", AGENTBOX_MAX_QUEUED_RUNS="1")
    kept = start_server(AGENTBOX_TOKEN=KEYS["one"])
    return {
        "AGENTBOX_TEST_URL": server.url,
        "AGENTBOX_TEST_NARROW_URL": narrow.url,
        "AGENTBOX_TEST_KEYS": ",".join(KEYS.values()),
        "AGENTBOX_TEST_KEPT_URL": kept.url,
        "AGENTBOX_TEST_KEPT_KEY": KEYS["one"],
        "AGENTBOX_TEST_COMMAND": f"{sys.executable} -m agentbox.cli.main",
        "AGENTBOX_URL": server.url,
    }


def test_types_are_those_of_the_server() -> None:
    assert typescript.TYPES.read_text(encoding="utf-8") == typescript.types(), "out of date: run `make docs`"


def test_tools_are_those_of_python() -> None:
    text = (typescript.PACKAGE / "src" / "tools.ts").read_text(encoding="utf-8")
    assert json.loads(text.partition("TOOLS: Tool[] = ")[2].rstrip(";\n")) == TOOLS


def test_package_has_no_dependencies_and_the_server_s_version() -> None:
    package = json.loads((typescript.PACKAGE / "package.json").read_text(encoding="utf-8"))
    assert "dependencies" not in package
    assert package["version"] == agentbox.__version__
    assert package["license"] in (REPOSITORY / "LICENSE").read_text(encoding="utf-8")


def test_every_behaviour_of_a_sandbox_has_a_test() -> None:
    listed = json.loads((REPOSITORY / "spec" / "sandbox" / "behaviours.json").read_text(encoding="utf-8"))["behaviours"]
    tests = (typescript.PACKAGE / "test" / "sandbox.test.ts").read_text(encoding="utf-8")
    tested = set(re.findall(r'^test\("([a-z0-9_]+)"', tests, re.MULTILINE))
    assert {one["name"] for one in listed} == tested


def test_lock_file_names_no_address() -> None:
    assert "http" not in (typescript.PACKAGE / "package-lock.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(path.stem for path in (typescript.PACKAGE / "test").glob("*.test.ts")))
def test_typescript_tests_pass(name: str, compiled: list[Path], servers: dict[str, str]) -> None:
    [file] = [path for path in compiled if path.stem == name]
    typescript.run_file(file, servers)


@pytest.mark.parametrize("number", range(1, len(typescript.readme_examples()) + 1))
def test_example_of_the_readme_runs(number: int, compiled: list[Path], servers: dict[str, str]) -> None:
    [file] = [path for path in compiled if path.name == f"readme_{number}.js"]
    assert typescript.run_file(file, servers)
