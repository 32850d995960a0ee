# SPDX-License-Identifier: MIT
"""What a wall must not break: programs that harm nobody run in a jail as they run outside."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adversarial.conftest import Jail
from tests.adversarial.guests import execute, output_of
from tests.running_server import RunningServer

GUEST = Path(__file__).with_name("guest")
PROGRAMS = sorted(path.name for path in (GUEST / "ordinary").iterdir() if path.suffix in {".py", ".js", ".sh"})
LANGUAGES = {".py": "python", ".js": "javascript", ".sh": "bash"}

IMPORT_SWEEP = """
import contextlib, io, json, sys
skipped = {"antigravity", "this", "idlelib", "turtledemo", "__main__"}
failed = []
for name in sorted(sys.stdlib_module_names - skipped):
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            __import__(name)
    except BaseException as error:
        failed.append(f"{name}: {type(error).__name__}")
print(json.dumps(failed))
"""


@pytest.mark.parametrize("program", PROGRAMS)
def test_ordinary_program_works(program: str, jail: Jail) -> None:
    """Each prints "works" last, after it checked its own results."""
    path = GUEST / "ordinary" / program
    result = execute(jail.server, path.read_text(), LANGUAGES[path.suffix], limits={"memory_mb": 256})
    assert (result["outcome"], result["exit_code"]) == ("exited", 0), result
    assert result["stdout"].splitlines()[-1] == "works", result


def test_every_module_of_the_standard_library_that_imports_outside_imports_inside(jail: Jail) -> None:
    inside = json.loads(output_of(jail.server, IMPORT_SWEEP))
    python = output_of(jail.server, "import sys\nprint(sys.executable)").strip()
    outside = subprocess.run([python, "-I", "-c", IMPORT_SWEEP], capture_output=True, text=True, check=True, cwd="/")
    assert inside == json.loads(outside.stdout)


@pytest.fixture(scope="module")
def science_server(start_server: Callable[..., RunningServer], science_python: str) -> RunningServer:
    return start_server(arguments=("--backend", "jail"), AGENTBOX_PYTHON=science_python)


def test_numpy_pandas_and_matplotlib_work_in_512_mb(science_server: RunningServer) -> None:
    code = (GUEST / "science.py").read_text()
    limits = {"memory_mb": 512, "timeout_seconds": 120}
    result = execute(science_server, code, limits=limits, return_files=["plot.png"])
    assert (result["outcome"], result["stdout"]) == ("exited", "works\n"), result
    assert result["files"]["plot.png"]["bytes"] > 1000
