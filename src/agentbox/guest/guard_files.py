# SPDX-License-Identifier: MIT
"""The directory of the guard on this host: made once for each version of the guard, compiled once for each interpreter.
Host side."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from agentbox.errors import ConfinementError

_HERE = Path(__file__).parent
_PACKAGE = _HERE.parent
_READING = ("errors.py", "__init__.py", "guest/__init__.py", "guest/reading.py", "guest/tables.py")
_COMPILE_SECONDS = 60
# Compiles every module of the guard into one file: a start reads one file instead of twenty.
_COMPILE = """
import marshal, os, sys
directory = sys.argv[1]
bundle = {}
for entry in sorted(os.listdir(directory + "/guard")):
    if entry.endswith(".py"):
        path = directory + "/guard/" + entry
        with open(path, "rb") as file:
            name = sys.argv[2] + "/guard/" + entry
            code = compile(file.read(), name, "exec", dont_inherit=True, optimize=2)
        bundle[entry[:-3]] = marshal.dumps(code)
name = directory + "/guard." + sys.implementation.cache_tag + ".bundle"
with open(name + ".new", "wb") as file:
    file.write(marshal.dumps(bundle))
os.rename(name + ".new", name)
import py_compile
unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
py_compile.compile(directory + "/sitecustomize.py", doraise=True, invalidation_mode=unchecked)
names = ["__init__.py", "errors.py"]
names += ["client/" + name for name in os.listdir(directory + "/lib/agentbox/client") if name.endswith(".py")]
for name in names:
    path = "/lib/agentbox/" + name
    py_compile.compile(directory + path, dfile=sys.argv[2] + path, doraise=True, invalidation_mode=unchecked)
"""


def guard_files() -> list[tuple[str, Path]]:
    """What a guard directory holds: path within it, and the file on this host."""
    files = [("sitecustomize.py", _HERE / "guard" / "site_entry.py")]
    files += [
        (f"guard/{path.name}", path)
        for path in sorted((_HERE / "guard").glob("*.py"))
        if path.name not in ("__init__.py", "site_entry.py")
    ]
    files += [(f"node/{path.name}", path) for path in sorted((_HERE / "node").glob("*.cjs"))]
    shared = [*_READING, *(f"client/{path.name}" for path in sorted((_PACKAGE / "client").glob("*.py")))]
    shared += [f"policy/{path.relative_to(_PACKAGE / 'policy')}" for path in _policy_modules()]
    files += [(f"lib/agentbox/{name}", _PACKAGE / name) for name in shared]
    return files


def guard_directory(cache: Path, interpreter: str | None = None, *, seen_as: str | None = None) -> Path:
    """A guard directory on this host, ready to be shown to a guest, below `cache`; made when it is not there.

    `interpreter` is a Python for which it is compiled too. `seen_as` is where the guest will see it (default: where it
    is). Raises ConfinementError.
    """
    files = guard_files()
    digest = hashlib.sha256()
    for name, source in files:
        digest.update(name.encode() + b"\0" + source.read_bytes() + b"\0")
    directory = cache / f"guard-{digest.hexdigest()[:16]}"
    if not directory.is_dir():
        _make(directory, files)
    if interpreter is not None:
        _compile(directory, interpreter, seen_as or str(directory))
    return directory


def _policy_modules() -> list[Path]:
    wanted = sorted((_PACKAGE / "policy").rglob("*.py"))
    return [path for path in wanted if path.name not in ("allowlist.py", "ceiling.py", "compilation.py", "lint.py")]


def _make(directory: Path, files: Sequence[tuple[str, Path]]) -> None:
    new = directory.with_name(f"{directory.name}.{secrets.token_hex(4)}")
    try:
        for name, source in files:
            target = new / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            target.chmod(0o644)
        for parent in (new, *(path for path in new.rglob("*") if path.is_dir())):
            parent.chmod(0o755)
        try:
            new.rename(directory)
        except OSError:
            if not directory.is_dir():
                raise
    except OSError as error:
        raise ConfinementError(
            f"the guard's directory {directory} cannot be made: {error.strerror}", hint="free space or rights there"
        ) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _compile(directory: Path, interpreter: str, seen_as: str) -> None:
    mark = directory / f"compiled-{hashlib.sha256(os.path.realpath(interpreter).encode()).hexdigest()[:16]}"
    if mark.exists():
        return
    try:
        done = subprocess.run(
            [interpreter, "-I", "-S", "-c", _COMPILE, str(directory), seen_as],
            capture_output=True,
            text=True,
            timeout=_COMPILE_SECONDS,
            check=False,
            env={},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfinementError(
            f"the guard cannot be compiled for {interpreter}: {error}", hint="check that this interpreter starts"
        ) from error
    if done.returncode != 0:
        raise ConfinementError(
            f"the guard cannot be compiled for {interpreter}: {done.stderr.strip()[-300:]}",
            hint="the guard needs CPython 3.9 or later",
        )
    mark.touch()
