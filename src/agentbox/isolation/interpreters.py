# SPDX-License-Identifier: MIT
"""Interpreters: how a language is found on the host, what a box must see of it, and how it is started.

To add one: a class with the attributes of Interpreter and a row in INTERPRETERS.
"""

from __future__ import annotations

import os

from agentbox.errors import ConfigError, UnsupportedLanguageError
from agentbox.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PROBE_TIMEOUT_SECONDS = 20

# What the base view of every box shows, where the host has it.
ALWAYS_VISIBLE = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# A prefix this wide would put the host's private files into every box.
TOO_WIDE = frozenset({"/", "/home", "/root", "/var", "/etc", "/opt", "/srv", "/mnt", "/tmp", "/run"})  # noqa: S108

_PYTHON_PROBE = (
    "import json,sys,sysconfig;print(json.dumps([sys.version.split()[0],"
    "[sys.prefix,sys.base_prefix,sys.exec_prefix,sys.base_exec_prefix]]))"
)


@dataclass(frozen=True, slots=True)
class Found:
    """An interpreter of this host: its absolute path, its version, and directories a box needs beyond /usr. Or one of
    an `image`, with its path there."""

    path: str
    version: str
    directories: tuple[str, ...]
    image: str = ""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """One language: its entry file and how argv is made from (path, script, memory in MB)."""

    name: str
    setting: str
    programs: tuple[str, ...]
    entry_file: str
    find: Callable[[str], Found]
    argv: Callable[[str, str, int], list[str]]


def _run(path: str, *arguments: str) -> str:
    import subprocess

    try:
        done = subprocess.run(
            [path, *arguments],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_SECONDS,
            stdin=subprocess.DEVNULL,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{path} cannot be run: {error}", hint="name a working interpreter") from error
    return done.stdout.strip()


def is_visible(path: str) -> bool:
    """Whether every box shows the path anyway."""
    return any(path == top or path.startswith(top + "/") for top in ALWAYS_VISIBLE)


def _needed(directories: list[str], path: str) -> tuple[str, ...]:
    """The directories that are not visible anyway, outermost only."""
    chosen: list[str] = []
    for directory in sorted({os.path.realpath(d) for d in directories} | set(directories), key=len):
        if is_visible(directory) or any(directory == c or directory.startswith(c + "/") for c in chosen):
            continue
        if directory in TOO_WIDE:
            raise ConfigError(
                f"{path} lives in {directory}, which would be shown whole to every box",
                hint="use an interpreter that has a directory of its own, for instance a venv",
            )
        chosen.append(directory)
    return tuple(chosen)


def _find_python(path: str) -> Found:
    import json

    version, prefixes = json.loads(_run(path, "-I", "-c", _PYTHON_PROBE))
    return Found(path, version, _needed(prefixes, path))


def _find_node(path: str) -> Found:
    version = _run(path, "--version").removeprefix("v")
    real = os.path.realpath(path)
    above = os.path.dirname(os.path.dirname(real))
    return Found(path, version, _needed([] if is_visible(real) else [above], path))


def _find_bash(path: str) -> Found:
    version = _run(path, "-c", 'echo "${BASH_VERSION%%(*}"')
    real = os.path.realpath(path)
    above = os.path.dirname(os.path.dirname(real))
    return Found(path, version, _needed([] if is_visible(real) else [above], path))


def _node_argv(path: str, script: str, memory_mb: int) -> list[str]:
    # V8 sizes its heap by the machine's memory, not the box's, and would be killed before it collects garbage.
    return [path, f"--max-old-space-size={max(16, memory_mb * 3 // 4)}", script]


INTERPRETERS: dict[str, Interpreter] = {
    "python": Interpreter(
        "python", "python", ("/usr/bin/python3", "python3"), "main.py", _find_python, lambda p, s, _: [p, s]
    ),
    "javascript": Interpreter("javascript", "node", ("/usr/bin/node", "node"), "main.js", _find_node, _node_argv),
    "bash": Interpreter("bash", "bash", ("/bin/bash", "bash"), "main.sh", _find_bash, lambda p, s, _: [p, s]),
}
ALIASES = {"node": "javascript"}


def by_language(language: str) -> Interpreter:
    """The interpreter of a language as a request names it, in any case. Raises UnsupportedLanguageError."""
    name = language.lower()
    try:
        return INTERPRETERS[ALIASES.get(name, name)]
    except KeyError:
        shown = "".join(c if c.isprintable() else "?" for c in language[:64])
        raise UnsupportedLanguageError(
            f"Unsupported language: {shown}", hint=f"use one of {', '.join([*INTERPRETERS, *ALIASES])}"
        ) from None


def locate(interpreter: Interpreter, configured: str) -> Found | None:
    """The interpreter that the operator configured, or else the host's; None when the host has none.

    Raises ConfigError when the configured one cannot be used.
    """
    import shutil

    if configured:
        path = shutil.which(os.path.expanduser(configured))
        if path is None:
            raise ConfigError(
                f"AGENTBOX_{interpreter.setting.upper()}={configured}: no such program",
                hint="give the absolute path of an interpreter",
            )
        return interpreter.find(os.path.abspath(path))
    for program in interpreter.programs:
        path = shutil.which(program)
        if path is not None:
            return interpreter.find(path)
    return None
