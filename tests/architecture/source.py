# SPDX-License-Identifier: MIT
"""The source tree as data: modules, what each imports, and the names it defines. Shared by the architecture tests."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "src" / "agentbox"


@dataclass(frozen=True)
class Import:
    """One imported module, dotted and absolute, and the line of the import."""

    module: str
    line: int


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

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=str(self.path))

    def imports(self) -> Iterator[Import]:
        """Every import of the file, also those inside functions and under TYPE_CHECKING."""
        yield from _imports(self.tree, self.dotted, is_package=self.path.name == "__init__.py")


def _imports(tree: ast.AST, dotted: str, *, is_package: bool) -> Iterator[Import]:
    for node in ast.walk(tree):
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
            and ast.unparse(node.func) in {"import_module", "importlib.import_module", "__import__"}
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield Import(str(node.args[0].value), node.lineno)


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


def module_id(module: Module) -> str:
    return module.relative


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
