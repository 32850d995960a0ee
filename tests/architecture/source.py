# SPDX-License-Identifier: MIT
"""The source tree as data: modules, what each imports, and the names it defines. Shared by the architecture tests."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple, TypeGuard

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "src" / "agentbox"


@dataclass(frozen=True)
class Import:
    """One imported module, dotted and absolute, and the line of the import."""

    module: str
    line: int


class Name(NamedTuple):
    """A name that a module defines: a class, a function or a variable."""

    kind: str
    name: str
    line: int


@dataclass(frozen=True)
class Findings:
    """What the rules ask of one file; `prints` and `environment` are the lines that print, and read the environment."""

    docstring: str | None
    imports: tuple[Import, ...]
    prints: tuple[int, ...]
    environment: tuple[int, ...]
    names: tuple[Name, ...]


@dataclass(frozen=True)
class Module:
    """One file of the package. `room` is the first part of its path below the package."""

    path: Path

    @property
    def relative(self) -> str:
        return self.path.relative_to(PACKAGE).as_posix()

    @property
    def room(self) -> str:
        return self.relative.split("/")[0].removesuffix(".py")

    @property
    def dotted(self) -> str:
        name = "agentbox." + self.relative.removesuffix(".py").replace("/", ".")
        return name.removesuffix(".__init__")

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def findings(self) -> Findings:
        """What its tree says; the tree itself is not kept, half a thousand of them would be slow to hold."""
        tree = ast.parse(self.text, filename=str(self.path))
        nodes = tuple(ast.walk(tree))
        return Findings(
            docstring=ast.get_docstring(tree),
            imports=tuple(imports_of(nodes, self.dotted, is_package=self.path.name == "__init__.py")),
            prints=tuple(node.lineno for node in nodes if _prints(node)),
            environment=tuple(getattr(node, "lineno", 0) for node in nodes if _reads_environment(node)),
            names=tuple(_defined(nodes)),
        )

    @property
    def imports(self) -> tuple[Import, ...]:
        """Every import of the file, also those inside functions and under TYPE_CHECKING."""
        return self.findings.imports


def imports_of(nodes: Iterable[ast.AST], dotted: str, *, is_package: bool) -> Iterator[Import]:
    """The imports among the nodes of a module of that name."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = dotted.split(".")
                parents = parts[: len(parts) - node.level + (1 if is_package else 0)]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                # `from agentbox import config` names a module, `from agentbox.config import load` does not.
                yield Import(f"{base}.{alias.name}" if _is_module(f"{base}.{alias.name}") else base, node.lineno)
        elif (
            isinstance(node, ast.Call)
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and ast.unparse(node.func) in {"import_module", "importlib.import_module", "__import__"}
        ):
            yield Import(str(node.args[0].value), node.lineno)


def _prints(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"


def _reads_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        named = node.attr in {"environ", "environb", "getenv"}
        return named and isinstance(node.value, ast.Name) and node.value.id == "os"
    if isinstance(node, ast.ImportFrom) and node.module == "os":
        return not {"environ", "getenv"}.isdisjoint(alias.name for alias in node.names)
    return False


def _defined(nodes: Iterable[ast.AST]) -> Iterator[Name]:
    for node in nodes:
        match node:
            case ast.ClassDef(name=name):
                yield Name("class", name, node.lineno)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield Name("function", name, node.lineno)
            case ast.arg(arg=name):
                yield Name("variable", name, node.lineno)
            case ast.Name(id=name, ctx=ast.Store()):
                yield Name("variable", name, node.lineno)


@cache
def _is_module(dotted: str) -> bool:
    head, _, rest = dotted.partition(".")
    if head != "agentbox":
        return False
    path = PACKAGE / rest.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


@cache
def modules() -> tuple[Module, ...]:
    """Every Python file of the package."""
    return tuple(Module(path) for path in sorted(PACKAGE.rglob("*.py")))


def imported_room(dotted: str) -> str | None:
    """The room of an agentbox module; None for everybody else's, and '' for the package itself."""
    head, _, rest = dotted.partition(".")
    return rest.split(".")[0] if head == "agentbox" else None


def is_third_party(dotted: str) -> bool:
    """Whether a module is neither agentbox's nor the standard library's."""
    head = dotted.split(".")[0]
    return head not in {"agentbox", "agentsbx", "__future__"} and head not in sys.stdlib_module_names


@cache
def repository_files() -> tuple[Path, ...]:
    """Every file that git knows, or would add; empty outside a git checkout."""
    listed = subprocess.run(
        ["git", "-c", f"safe.directory={REPOSITORY}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    paths = (REPOSITORY / name for name in listed.split("\0") if name)
    return tuple(path for path in paths if path.is_file() and not path.is_symlink())
