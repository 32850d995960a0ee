# SPDX-License-Identifier: MIT
"""What the command that a user typed needs to see of the host to start at all: its program, its interpreter's own
files, the entry script and the modules beside it. Shown read-only, and never more than that."""

from __future__ import annotations

import os

from agentbox.errors import InvalidRequestError
from agentbox.isolation.interpreters import TOO_WIDE, is_visible
from agentbox.records import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agentbox.models import ProgramRule

_MODULE_SUFFIXES = {
    "python": (".py", ".pyi", ".pth", ".so"),
    "node": (".js", ".cjs", ".mjs", ".json", ".node", ".ts"),
    "shell": (".sh", ".bash"),
}
_KINDS = (
    ("python", "python"),
    ("pypy", "python"),
    ("node", "node"),
    ("bash", "shell"),
    ("sh", "shell"),
    ("dash", "shell"),
)
# Options of CPython and Node that take the next word as their value.
_OPTIONS_WITH_VALUE = {
    "python": ("-W", "-X", "--check-hash-based-pycs"),
    "node": ("-r", "--require", "--import", "-C"),
}
_MAX_SIBLINGS = 500
_SHIM_SECONDS = 10


@dataclass(frozen=True, slots=True)
class CommandView:
    """`path` is what to execute, `real` the file behind it, `kind` python, node, shell or else nothing."""

    path: str
    real: str
    arguments: tuple[str, ...]
    kind: str
    shown: tuple[str, ...]
    script: str = ""

    def with_programs(self, policies: Iterable[Iterable[ProgramRule]], search_path: str) -> CommandView:
        """The view with the files of programs that `exec:` rules allow, where those are not in the base view."""
        shown = dict.fromkeys(self.shown)
        for rule in (rule for rules in policies for rule in rules):
            if rule.deny or rule.program is None or not os.path.exists(rule.program):
                continue
            named = _on_path(rule.words[0], search_path) or rule.program
            named = named if os.path.realpath(named) == rule.program else rule.program
            needed = _program_files(os.path.abspath(named), rule.program, _kind(rule.program))
            shown.update(dict.fromkeys(top for top in (*needed, *rule.libexec) if not is_visible(top)))
        return replace(self, shown=tuple(shown))


def look_at(argv: Sequence[str], directory: str, search_path: str) -> CommandView:
    """The view of a command. Raises InvalidRequestError when there is no such program."""
    name = argv[0]
    candidate = os.path.join(directory, name) if "/" in name else _on_path(name, search_path)
    if candidate is None or not os.path.isfile(candidate) or not os.access(candidate, os.X_OK):
        raise InvalidRequestError(
            f"there is no program {name!r}" + ("" if "/" in name else " on PATH"),
            hint="check the spelling, or give its path",
        )
    path = _behind_shim(os.path.abspath(candidate))
    real = os.path.realpath(path)
    kind = _kind(real)
    shown = [*_program_files(path, real, kind)]
    script = _script(argv[1:], directory, kind)
    if script:
        shown += _modules_beside(script, kind)
    # A link whose directory is not shown cannot be followed inside; a virtual environment's is.
    visible = is_visible(path) or any(path.startswith(top + "/") or path == top for top in shown)
    needed = [top for top in dict.fromkeys(shown) if not is_visible(top)]
    return CommandView(path if visible else real, real, tuple(argv[1:]), kind, tuple(needed), script)


def _on_path(name: str, search_path: str) -> str | None:
    """The first program of that name in the directories of a PATH, as a shell would find it."""
    if "/" in name:
        return name if _is_program(name) else None
    if not search_path:
        return None
    found = (os.path.join(directory, name) for directory in search_path.split(os.pathsep))
    return next((path for path in found if _is_program(path)), None)


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _behind_shim(path: str) -> str:
    """The program that a version manager's shim would start: the shim is a script that needs the whole manager."""
    root, _, name = path.rpartition("/shims/")
    manager = next((tool for tool in (f"{root}/bin/pyenv", f"{root}/libexec/pyenv") if os.access(tool, os.X_OK)), "")
    if not root or not manager:
        return path
    import subprocess

    try:
        found = subprocess.run(
            [manager, "which", name], capture_output=True, text=True, timeout=_SHIM_SECONDS, stdin=subprocess.DEVNULL
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return path
    return found if os.access(found, os.X_OK) else path


def _kind(real: str) -> str:
    base = os.path.basename(real)
    return next((kind for start, kind in _KINDS if base == start or base.startswith((f"{start}3", f"{start}2"))), "")


def _program_files(path: str, real: str, kind: str) -> Iterator[str]:
    """Directories and files of the program itself."""
    if kind == "python":
        prefix = os.path.dirname(os.path.dirname(path))
        home = _base_of_venv(prefix)
        if home:
            yield prefix
            real = os.path.realpath(os.path.join(home, os.path.basename(real)))
    if kind in ("python", "node"):
        prefix = os.path.dirname(os.path.dirname(real))
        if prefix not in TOO_WIDE and not is_visible(real) and os.path.dirname(prefix) != "/":
            yield prefix
            return
    yield real


def _base_of_venv(prefix: str) -> str:
    """The `home` of a virtual environment, '' when the directory is none."""
    try:
        with open(os.path.join(prefix, "pyvenv.cfg"), encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition("=")
                if key.strip() == "home":
                    return value.strip()
    except OSError:
        pass
    return ""


def _script(arguments: Sequence[str], directory: str, kind: str) -> str:
    """The file that an interpreter is told to run, '' when there is none."""
    if not kind:
        return ""
    with_value = _OPTIONS_WITH_VALUE.get(kind, ())
    skip = False
    for word in arguments:
        if skip:
            skip = False
        elif word in ("-c", "-m", "-e", "-p", "--eval", "--print"):
            return ""
        elif word.startswith("-") and word != "-":
            skip = word in with_value
        else:
            path = os.path.realpath(os.path.join(directory, word))
            return path if os.path.isfile(path) else ""
    return ""


def _modules_beside(script: str, kind: str) -> Iterator[str]:
    """The script, modules of its language in the same directory, and packages there."""
    yield script
    parent = os.path.dirname(script)
    suffixes = _MODULE_SUFFIXES[kind]
    try:
        entries = sorted(os.scandir(parent), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries[:_MAX_SIBLINGS]:
        if entry.is_symlink() or entry.name.startswith("."):
            continue
        module = entry.is_file() and entry.name.endswith(suffixes)
        if module or (entry.is_dir() and _is_package(entry.path, kind)):
            yield entry.path


def _is_package(path: str, kind: str) -> bool:
    if kind == "python":
        return os.path.exists(os.path.join(path, "__init__.py"))
    return kind == "node" and os.path.basename(path) == "node_modules"
