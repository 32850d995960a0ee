# SPDX-License-Identifier: MIT
"""The one file with the code of a run's modules is believed only as compiled modules are, and changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import agentbox

USE = """
import sys
from agentbox.light import bundle
modules = bundle.use()
import agentbox.errors, agentbox.policy.rules
"""
SHOW = """
print(len(modules.entries), type(agentbox.errors.__spec__.loader).__name__, getattr(agentbox.errors, "MARK", ""))
"""
KEEP = 'modules.keep("agentbox.records")'


@pytest.fixture
def package(tmp_path: Path) -> Path:
    copy = tmp_path / "agentbox"
    shutil.copytree(Path(agentbox.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def _run(package: Path, program: str, **more: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPATH": str(package.parent), **more}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=package.parent,
        timeout=120,
    )
    return done.stdout.strip()


def _made(package: Path) -> Path:
    _run(package, USE + KEEP)
    [made] = (package / "__pycache__").glob("*.bundle")
    return made


def test_modules_of_a_run_are_found_in_the_file_that_an_earlier_run_left(package: Path) -> None:
    _made(package)
    count, loader, _ = (_run(package, USE + SHOW) + " ").split(" ", 2)
    assert int(count) > 10
    assert loader == "_Loader"


def test_the_modules_are_as_python_finds_them(package: Path) -> None:
    look = """
for name, module in sorted(sys.modules.items()):
    if name.startswith("agentbox.") and name != "agentbox.light.bundle":
        spec = module.__spec__
        print(name, module.__file__, module.__cached__, module.__doc__, module.__package__,
              getattr(module, "__path__", None), spec.origin, spec.has_location, spec.parent)
"""
    before = _run(package, USE + look)
    _made(package)
    assert _run(package, USE + look) == before
    assert "agentbox.policy.rules" in before


def test_a_changed_source_is_read_anew(package: Path) -> None:
    source = package / "errors.py"
    text = source.read_text(encoding="utf-8")
    source.write_text(f"{text}\nMARK = 'one'\n", encoding="utf-8")
    _made(package)
    assert _run(package, USE + SHOW).endswith("_Loader one")
    facts = source.stat()
    # As long as before: only the time differs.
    source.write_text(f"{text}\nMARK = 'two'\n", encoding="utf-8")
    os.utime(source, ns=(facts.st_atime_ns, facts.st_mtime_ns + 2_000_000_000))
    assert _run(package, USE + SHOW).endswith("SourceFileLoader two")
    source.write_text(f"{text}\nMARK = 'three'\n", encoding="utf-8")
    assert _run(package, USE + SHOW).endswith("SourceFileLoader three")


def test_a_changed_source_gets_its_place_in_the_next_file(package: Path) -> None:
    _made(package)
    with (package / "errors.py").open("a", encoding="utf-8") as file:
        file.write("\nMARK = 'new'\n")
    _run(package, USE + KEEP)
    assert _run(package, USE + SHOW).endswith("_Loader new")


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_may_write_is_not_believed(package: Path, mode: int) -> None:
    _made(package).chmod(mode)
    assert _run(package, USE + SHOW) == "0 SourceFileLoader"


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="not on this host: only root can give files away"
)
def test_a_file_of_another_user_is_not_believed(package: Path) -> None:
    os.chown(_made(package), 4711, 4711)
    assert _run(package, USE + SHOW) == "0 SourceFileLoader"


def test_a_link_is_not_followed(package: Path) -> None:
    made = _made(package)
    moved = made.rename(package.parent / "elsewhere")
    made.symlink_to(moved)
    assert _run(package, USE + SHOW) == "0 SourceFileLoader"


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"\xff" * 100, b"cut"], ids=["empty", "zeros", "ones", "cut"])
def test_a_spoiled_file_is_passed_over_and_replaced(package: Path, content: bytes) -> None:
    made = _made(package)
    made.write_bytes(made.read_bytes()[:200] if content == b"cut" else content)
    assert _run(package, USE + SHOW) == "0 SourceFileLoader"
    _run(package, USE + KEEP)
    assert "_Loader" in _run(package, USE + SHOW)


def test_a_moved_package_does_not_use_the_file_of_its_old_place(package: Path) -> None:
    _made(package)
    moved = package.parent / "elsewhere" / "agentbox"
    moved.parent.mkdir()
    package.rename(moved)
    assert _run(moved, USE + SHOW) == "0 SourceFileLoader"


def test_nothing_is_written_where_python_may_write_no_compiled_modules(package: Path) -> None:
    _run(package, USE + KEEP, PYTHONDONTWRITEBYTECODE="1")
    assert not list(package.rglob("*.bundle"))
