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
KEEP = "modules.keep()"
SETS = ("front", "begin", "plan", "session")
LOAD = f"""
import sys
from agentbox.light import bundle, choose
modules = bundle.use()
choose()
for one in {SETS}:
    modules.load(one)
"""
IMPORT = """
import sys
from agentbox.light import bundle, choose
modules = bundle.use()
choose()
import agentbox.engine.agent_session, agentbox.guest.tables, agentbox.engine.policy_world, agentbox.isolation.early
import agentbox.cli.front, agentbox.engine.limits, agentbox.light.loop, agentbox.isolation.launcher.forked
import agentbox.engine.search_path, agentbox.linux.cgroup_grace
"""
LOOK = """
for name, module in sorted(sys.modules.items()):
    if name.startswith("agentbox.") and name != "agentbox.light.bundle":
        spec = module.__spec__
        print(name, module.__file__, module.__cached__, module.__doc__, module.__package__, type(module.__loader__) is
              type(spec.loader), getattr(module, "__path__", None), spec.origin, spec.has_location, spec.parent,
              getattr(sys.modules[spec.name.rpartition(".")[0]], name.rpartition(".")[2]) is module)
"""


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
    before = _run(package, USE + LOOK)
    _made(package)
    assert _run(package, USE + LOOK) == before
    assert "agentbox.policy.rules" in before


@pytest.mark.skipif(sys.platform != "linux", reason="boxes are Linux's")
def test_sets_that_are_imported_whole_are_as_python_imports_them(package: Path) -> None:
    before = _run(package, IMPORT + LOOK)
    _made(package)
    assert _run(package, LOAD + LOOK) == before
    assert "agentbox.engine.agent_session" in before


@pytest.mark.skipif(sys.platform != "linux", reason="boxes are Linux's")
def test_a_set_holds_all_that_its_modules_import(package: Path) -> None:
    _made(package)
    asked = "modules.find_spec = lambda name, path, target=None: print(name)\n"
    launcher = LOAD.replace(str(SETS), str(("front", "launcher")))
    for program in (LOAD, launcher):
        # A package that imports its own modules gets them one by one.
        found = _run(package, program.replace("choose()\n", f"choose()\n{asked}")).split()
        ours = [name for name in found if name.startswith("agentbox.")]
        assert [name for name in ours if not name.startswith("agentbox.policy.rules.")] == []


@pytest.mark.skipif(sys.platform != "linux", reason="boxes are Linux's")
@pytest.mark.parametrize("changed", ["records.py", "engine/__init__.py", "policy/rules/env.py", "engine/agent_run.py"])
def test_a_changed_source_in_a_set_is_read_anew(package: Path, changed: str) -> None:
    _made(package)
    with (package / changed).open("a", encoding="utf-8") as file:
        file.write("\nMARK = 'new'\n")
    name = f"agentbox.{changed[:-3].replace('/', '.')}".removesuffix(".__init__")
    show = f"\nprint(sys.modules[{name!r}].MARK)"
    imports = IMPORT.partition("choose()\n")[2]
    assert _run(package, LOAD + imports + show) == "new"
    # The next file has it in its set.
    assert _run(package, LOAD + imports + KEEP + show) == "new"
    assert _run(package, LOAD + show) == "new"


def test_making_the_file_leaves_imported_modules_as_they_were(package: Path) -> None:
    note = """
def ours(names):
    return {name: one for name, one in names.items() if getattr(one, "__name__", "").startswith("agentbox")}
mine = ours(sys.modules)
members = {name: ours(vars(module)) for name, module in mine.items()}
"""
    check = """
assert ours(sys.modules) == mine
for name, module in mine.items():
    assert ours(vars(module)) == members[name], name
print("the same")
"""
    assert _run(package, USE + note + KEEP + check) == "the same"


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
