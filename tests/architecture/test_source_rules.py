# SPDX-License-Identifier: MIT
"""Rules of the source that a reader may rely on: where danger lives, what words mean, how large a file may be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture.source import Module, module_id, modules, repository_files

MAX_MODULE_LINES = 500

# Readers of the environment besides config.py, each with its reason.
ENVIRONMENT_READERS: dict[str, str] = {
    "guest/agent/protocol.py": "runs inside the guest: what the box gave it, its commands get",
    "guest/guard/freezing.py": "takes the seed out of the guest's environment, so that its children do not have it",
    "guest/soft_egress/sitecustomize.py": "runs inside the guest, whose environment is all that it is told",
    "guest/zygote.py": "makes the environment of a run, inside the guest",
    "linux/process.py": "overwrites the environment in processes that a guest may come near",
}

# Users of ctypes besides linux/, each with its reason.
RAW_CALLERS: dict[str, str] = {
    "guest/agent/keeper.py": "runs inside the guest, where nothing of linux/ is visible",
    "guest/checks.py": "makes forbidden calls from inside a box, where nothing of linux/ is visible",
    "guest/zygote.py": "loads what is compiled for it, inside the guest, where nothing of linux/ is visible",
}

# One word per idea: a run is not a job, and a thing is named by what it is, not by being a helper.
FORBIDDEN_WORDS = frozenset({"job", "jobs", "task", "tasks", "manager", "helper", "helpers", "util", "utils", "common"})
# asyncio calls its own objects tasks, and a variable may hold what two things have in common.
FORBIDDEN_IN_VARIABLES = frozenset({"job", "jobs"})

# These are asyncio's names for asyncio's things.
NAMED_LIKE_ASYNCIO = frozenset({"light/futures.py", "light/loop.py"})


@pytest.mark.parametrize("module", modules(), ids=module_id)
def test_module_says_what_it_is_for_and_under_which_licence(module: Module) -> None:
    assert module.text.startswith("# SPDX-License-Identifier: MIT\n")
    assert ast.get_docstring(module.tree), f"{module.relative} has no docstring"


@pytest.mark.parametrize("module", modules(), ids=module_id)
def test_module_is_small_enough_to_be_read_at_once(module: Module) -> None:
    lines = len(module.text.splitlines())
    assert lines <= MAX_MODULE_LINES, f"{module.relative} has {lines} lines: split it by subject"


@pytest.mark.parametrize("module", modules(), ids=module_id)
def test_module_leaves_nothing_for_later(module: Module) -> None:
    marks = re.findall(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b", module.text)
    assert not marks


@pytest.mark.parametrize("module", modules(), ids=module_id)
def test_only_the_command_line_prints(module: Module) -> None:
    if module.room == "cli":
        return
    prints = [
        node.lineno
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not prints, f"{module.relative} prints in lines {prints}"


@pytest.mark.parametrize("module", modules(), ids=module_id)
def test_raw_system_calls_are_made_in_the_linux_room_only(module: Module) -> None:
    if module.room == "linux" or module.relative in RAW_CALLERS:
        return
    wrong = [found.line for found in module.imports() if found.module.split(".")[0] in {"ctypes", "_ctypes", "cffi"}]
    assert not wrong, f"{module.relative} uses ctypes in lines {wrong}"


@pytest.mark.parametrize("module", modules(), ids=module_id)
def test_environment_is_read_in_config_only(module: Module) -> None:
    if module.relative in {"config.py", *ENVIRONMENT_READERS}:
        return
    reads = [
        node.lineno
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Attribute) and ast.unparse(node) in {"os.environ", "os.environb", "os.getenv"})
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and {"environ", "getenv"} & _names(node))
    ]
    assert not reads, f"{module.relative} reads the environment in lines {reads}; take a value from Settings"


@pytest.mark.parametrize("module", modules(), ids=module_id)
def test_names_use_the_words_of_the_project(module: Module) -> None:
    wrong = [f"{module.relative}: the file"] if FORBIDDEN_WORDS & _words(module.path.stem) else []
    for kind, name, line in _defined_names(module.tree):
        asyncios = kind == "variable" or module.relative in NAMED_LIKE_ASYNCIO
        forbidden = FORBIDDEN_IN_VARIABLES if asyncios else FORBIDDEN_WORDS
        if forbidden & _words(name):
            wrong.append(f"{module.relative}:{line}: {kind} {name}")
    assert not wrong, "\n".join(wrong)


def test_repository_names_no_machine_and_no_registry() -> None:
    patterns = [
        re.compile(r"(?:py" + r"pi|npm" + r"js|python" + r"hosted|deb" + r"ian|ubu" + r"ntu)\.(?:org|com|net)\b"),
        re.compile(r"/wo" + r"rk/(?:main(?![.\w])|steering|shared|\.library|\.mirror)\b"),
        re.compile(r"/ro" + r"ot/\.pyenv|abv" + r"env|/tmp/br" + r"ief|/fa" + r"rm/"),
        re.compile(r"\bC" + r"EO\b|\bissues? (?:number )?#?\d"),
    ]
    wrong = []
    for path in repository_files():
        text = path.read_bytes().decode("utf-8", "replace")
        for number, line in enumerate(text.splitlines(), 1):
            wrong += [f"{path.name}:{number}: {found.group()}" for p in patterns if (found := p.search(line))]
    assert not wrong, "\n".join(wrong[:20])


def test_every_source_file_names_its_licence() -> None:
    for path in repository_files():
        if path.suffix in {".py", ".sh"} or path.name in {"Makefile", "run"}:
            head = path.read_text(encoding="utf-8").splitlines()[:2]
            assert not head or any("SPDX-License-Identifier: MIT" in line for line in head), f"{path} has no SPDX line"


def _names(node: ast.ImportFrom) -> set[str]:
    return {alias.name for alias in node.names}


def _words(name: str) -> set[str]:
    """The lower-case words of a snake_case or CamelCase name."""
    return {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


def _defined_names(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name):
                yield "class", name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield "function", name, node.lineno
            case ast.arg(arg=name):
                yield "variable", name, node.lineno
            case ast.Name(id=name, ctx=ast.Store()):
                yield "variable", name, node.lineno
