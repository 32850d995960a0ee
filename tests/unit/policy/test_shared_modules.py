# SPDX-License-Identifier: MIT
"""The parser and the evaluation also run inside boxes, whose interpreter may be as old as CPython 3.9."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGE, Module
from tests.conftest import not_here

# What a guest loads besides: the package itself and the errors, which hold to the same.
SHARED = (
    PACKAGE / "__init__.py",
    PACKAGE / "errors.py",
    PACKAGE / "policy" / "__init__.py",
    *(PACKAGE / "policy" / f"{name}.py" for name in ("decision", "document", "evaluation", "glob", "hosts", "index")),
    *(PACKAGE / "policy" / f"{name}.py" for name in ("parser", "paths", "protected", "questions", "rule", "text")),
    *(PACKAGE / "policy" / f"{name}.py" for name in ("patterns", "record", "words")),
    *sorted((PACKAGE / "policy" / "rules").glob("*.py")),
    *sorted((PACKAGE / "policy" / "answers").glob("*.py")),
)
NAMES = frozenset(Module(path).dotted for path in SHARED)
PROGRAM = """
import sys
from agentbox.policy.parser import parse
from agentbox.policy.evaluation import decide
from agentbox.policy.questions import Read, Connect, Exec
policy = parse("read: ./data, ./*.py\\nnet: *.a.test:443, [::1]:80\\nexec: git 'a b'", root="/w",
               find_program=lambda name: "/bin/" + name)
assert decide(policy, Read("/w/data/x")).allowed
assert not decide(policy, Read("/w/data-x")).allowed
assert decide(policy, Connect("x.a.test", 443)).allowed
assert decide(policy, Exec(("git", "a b"), "/bin/git")).allowed
print(policy.policy_sha256)
print(sorted(name for name in sys.modules if name.startswith("agentbox")))
"""


@pytest.mark.parametrize("path", SHARED, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_shared_module_is_syntax_of_the_oldest_interpreter(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    assert not [node for node in ast.walk(tree) if type(node).__name__ in ("Match", "TryStar", "TypeAlias")]
    assert not [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node).startswith("zip(") and "strict=" in ast.unparse(node)
    ]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg in ("slots", "kw_only")]


@pytest.mark.parametrize("path", SHARED, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_shared_module_imports_shared_modules_and_the_standard_library_only(path: Path) -> None:
    for found in Module(path).imports:
        head = found.module.split(".")[0]
        assert found.module in NAMES or (head != "agentbox" and head in sys.stdlib_module_names), found


def outputs_of(interpreter: str, directory: Path) -> list[str]:
    """What PROGRAM says with nothing but the shared modules to import."""
    for path in SHARED:
        target = directory / "agentbox" / path.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    program = directory / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run(
        [interpreter, "-S", "-E", str(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_evaluation_imports_nothing_that_takes_longer_than_itself(tmp_path: Path) -> None:
    code = "import sys; before = set(sys.modules); import agentbox.policy.evaluation"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"{code}; print(*(set(sys.modules) - before))"],
        env={"PYTHONPATH": str(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert {name.split(".")[0] for name in done.stdout.split()} <= {"agentbox", "__future__"}


def test_shared_modules_work_alone(tmp_path: Path) -> None:
    _, loaded = outputs_of(sys.executable, tmp_path)
    assert set(ast.literal_eval(loaded)) <= NAMES


def test_shared_modules_work_on_the_oldest_interpreter(tmp_path: Path) -> None:
    interpreter = shutil.which("python3.9")
    if interpreter is None or subprocess.run([interpreter, "-V"], capture_output=True, check=False).returncode:
        not_here("this distribution has no CPython 3.9, and none was installed by hand")
    assert outputs_of(interpreter, tmp_path / "old")[0] == outputs_of(sys.executable, tmp_path / "new")[0]
