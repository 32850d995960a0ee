# SPDX-License-Identifier: MIT
"""How the guard gets into an interpreter: files that must be visible to it, and variables that load it. Host side.

The directory of the guard (`GUARD_DIR`) is made once for each version of an interpreter, with the code compiled for
it: compiling at every start would cost ten times what arming does.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentbox.errors import ConfinementError
from agentbox.guest.tables import policy_file

GUARD_DIR = "/run/agentbox/guard"
# The interpreters that load the filter of soft_egress.
SOFT_INTERPRETERS = ("python", "javascript")
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
            bundle[entry[:-3]] = compile(file.read(), name, "exec", dont_inherit=True, optimize=2)
name = directory + "/guard." + sys.implementation.cache_tag + ".bundle"
with open(name + ".new", "wb") as file:
    file.write(marshal.dumps(bundle))
os.rename(name + ".new", name)
import py_compile
unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
py_compile.compile(directory + "/sitecustomize.py", doraise=True, invalidation_mode=unchecked)
"""


def injection(
    interpreter_kind: str,
    guard_dir: str,
    channel: str,
    policy_path: str,
    root: str,
    mode: str,
    enforce: bool,
    base_env: Mapping[str, str],
    *,
    wall: str = "jail",
    private: Sequence[str] = (),
    entry: str = "",
    node_flags: Sequence[str] = (),
) -> dict[str, str]:
    """The environment of a guest: `base_env` with what loads the guard into it and into what it starts.

    `interpreter_kind` (`python`, `node` or anything else) is what the command is; a child may be another, so both ways
    are always set. `policy_path` names a file of `policy_file` (or of policy text, which is slower to start).
    `mode` is `record` or `replay`. `wall` is `jail`, or `none` when nothing but the guard is in the way. `private` are
    directories that nobody outside sees, `entry` the entry script: both as the guest sees them. `node_flags` are words
    of NODE_OPTIONS that every Node keeps (see `node_flags`); the caller's own NODE_OPTIONS follow.
    """
    del interpreter_kind
    python_path = [guard_dir, *filter(None, base_env.get("PYTHONPATH", "").split(os.pathsep))]
    flags = " ".join(node_flags)
    node_options = f'--require "{guard_dir}/node/shim.cjs"' + (f" {flags}" if flags else "")
    if base_env.get("NODE_OPTIONS"):
        node_options += f" {base_env['NODE_OPTIONS']}"
    found = {
        # Code beside an entry script is read without a rule, but nothing may be written there.
        "PYTHONDONTWRITEBYTECODE": "1",
        **base_env,
        "PYTHONPATH": os.pathsep.join(python_path),
        "NODE_OPTIONS": node_options,
        "AGENTBOX_CHANNEL": channel,
        "AGENTBOX_POLICY": policy_path,
        "AGENTBOX_ROOT": root,
        "AGENTBOX_MODE": mode,
        "AGENTBOX_ENFORCE": "1" if enforce else "0",
        "AGENTBOX_WALL": wall,
        "AGENTBOX_PRIVATE": os.pathsep.join(private),
    }
    if entry:
        found["AGENTBOX_ENTRY"] = entry
    if flags:
        found["AGENTBOX_NODE_FLAGS"] = flags
    return found


def soft_egress(allowlist: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """`env` with what loads the filter of a backend that has no wall into Python and Node: connections to what is not
    among the `host[:port]` entries fail there. A program that means to gets around it."""
    directory = str(_HERE / "soft_egress")
    found = {**env, "AGENTBOX_EGRESS_HOSTS": ",".join(allowlist)}
    found["PYTHONPATH"] = os.pathsep.join([directory, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))])
    found["NODE_OPTIONS"] = f'--require "{directory}/preload.cjs" {env.get("NODE_OPTIONS", "")}'.rstrip()
    return found


def guard_files() -> list[tuple[str, Path]]:
    """What a guard directory holds: path within it, and the file on this host."""
    files = [("sitecustomize.py", _HERE / "guard" / "site_entry.py")]
    files += [
        (f"guard/{path.name}", path)
        for path in sorted((_HERE / "guard").glob("*.py"))
        if path.name not in ("__init__.py", "site_entry.py")
    ]
    files += [(f"node/{path.name}", path) for path in sorted((_HERE / "node").glob("*.cjs"))]
    shared = [*_READING, *(f"policy/{path.relative_to(_PACKAGE / 'policy')}" for path in _policy_modules())]
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


def why_unguarded(argv: Sequence[str]) -> str:
    """Why a command line would start a Python or Node without its guard; '' when it would not."""
    name = os.path.basename(argv[0]) if argv else ""
    if name.startswith(("python", "pypy")):
        skip = False
        for word in argv[1:]:
            if skip or not word.startswith("-") or word == "-":
                if skip:
                    skip = False
                    continue
                break
            letters = word[1:]
            for letter in ("c", "m", "W", "X"):
                letters = letters.partition(letter)[0]
            if not word.startswith("--") and set(letters) & {"I", "S", "E"}:
                return f"{word} starts Python without its site module or without PYTHONPATH, and so without the guard"
            if "c" in word[1:] or "m" in word[1:]:
                break
            skip = word in ("-W", "-X")
    if name in ("node", "nodejs") and any(word.startswith("--no-") and "options" in word for word in argv[1:]):
        return "Node would not read NODE_OPTIONS, and so not load the guard"
    return ""


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


__all__ = [
    "GUARD_DIR",
    "SOFT_INTERPRETERS",
    "guard_directory",
    "guard_files",
    "injection",
    "policy_file",
    "soft_egress",
    "why_unguarded",
]
