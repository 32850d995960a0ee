# SPDX-License-Identifier: MIT
"""How the guard gets into an interpreter: files that must be visible to it, and variables that load it. Host side.

The directory of the guard (`GUARD_DIR`) is made once for each version of an interpreter, with the code compiled for
it: compiling at every start would cost ten times what arming does.
"""

from __future__ import annotations

import os

from agentbox.light import contextlib, digests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any


GUARD_DIR = "/run/agentbox/guard"
# The interpreters that load the filter of soft_egress.
SOFT_INTERPRETERS = ("python", "javascript")
_HERE = os.path.dirname(__file__)
_PARTS = ("", "/rules", "/answers")


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
    seed: str = "",
    node_flags: Sequence[str] = (),
) -> dict[str, str]:
    """The environment of a guest: `base_env` with what loads the guard into it and into what it starts.

    `interpreter_kind` (`python`, `node` or anything else) is what the command is; a child may be another, so both ways
    are always set. `policy_path` names a file of `policy_file` (or of policy text, which is slower to start).
    `mode` is `record` or `replay`. `wall` is `jail`, or `none` when nothing but the guard is in the way. `private` are
    directories that nobody outside sees, `entry` the entry script: both as the guest sees them. With a `seed`,
    64 hexadecimal digits, clocks and randomness are recorded for a replay, or served in one. `node_flags` are words
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
    if seed:
        found["AGENTBOX_SEED"] = seed
        # The order of sets of text comes again too.
        found.setdefault("PYTHONHASHSEED", "0")
    if flags:
        found["AGENTBOX_NODE_FLAGS"] = flags
    return found


def soft_egress(allowlist: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """`env` with what loads the filter of a backend that has no wall into Python and Node: connections to what is not
    among the `host[:port]` entries fail there. A program that means to gets around it."""
    directory = f"{_HERE}/soft_egress"
    found = {**env, "AGENTBOX_EGRESS_HOSTS": ",".join(allowlist)}
    found["PYTHONPATH"] = os.pathsep.join([directory, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))])
    found["NODE_OPTIONS"] = f'--require "{directory}/preload.cjs" {env.get("NODE_OPTIONS", "")}'.rstrip()
    return found


def policy_file(policy: Any) -> str:
    """The content of the file that `AGENTBOX_POLICY` names."""
    from agentbox.guest.tables import policy_file

    return policy_file(policy)


def guard_directory(cache: str | Path, interpreter: str | None = None, *, seen_as: str | None = None) -> Path:
    """A guard directory on this host, ready to be shown to a guest, below `cache`; made when it is not there.

    `interpreter` is a Python for which it is compiled too. `seen_as` is where the guest will see it (default: where it
    is). Raises ConfinementError.
    """
    from pathlib import Path

    from agentbox.guest import guard_files

    return guard_files.guard_directory(Path(cache), interpreter, seen_as=seen_as)


def known_guard_directory(cache: str, interpreter: str | None = None, *, seen_as: str | None = None) -> str:
    """As `guard_directory`, for those who start often: what was made before is found again by the sizes and times of
    what it was made of, as Python finds its compiled modules."""
    facts = (tuple(_sources()), seen_as, interpreter and (interpreter, _seen(os.stat(interpreter))))
    note = f"{cache}/known-{digests.sha256(repr(facts).encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"
    try:
        directory = f"{cache}/{os.readlink(note)}"
        if os.path.isdir(directory):
            return directory
    except OSError:
        pass
    made = str(guard_directory(cache, interpreter, seen_as=seen_as))
    draft = f"{note}.{os.urandom(4).hex()}"
    # Without the note the next one looks again.
    with contextlib.suppress(OSError):
        os.symlink(os.path.basename(made), draft)
        os.replace(draft, note)
    return made


def _sources() -> Iterator[tuple[str, int, int, int]]:
    """Everything that a guard directory may be made of, as it looks from outside."""
    package = os.path.dirname(_HERE)
    for place in (
        package,
        f"{package}/client",
        _HERE,
        f"{_HERE}/guard",
        f"{_HERE}/node",
        *(f"{package}/policy{part}" for part in _PARTS),
    ):
        with os.scandir(place) as entries:
            files = [entry for entry in entries if entry.name.endswith((".py", ".cjs"))]
        for entry in sorted(files, key=lambda entry: entry.name):
            yield (entry.path, *_seen(entry.stat()))


def _seen(facts: os.stat_result) -> tuple[int, int, int]:
    return facts.st_size, facts.st_mtime_ns, facts.st_ino


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


__all__ = [
    "GUARD_DIR",
    "SOFT_INTERPRETERS",
    "guard_directory",
    "injection",
    "known_guard_directory",
    "policy_file",
    "soft_egress",
    "why_unguarded",
]
